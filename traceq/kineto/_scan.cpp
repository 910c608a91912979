// Kineto events from JSON text to columns, without a Python object per event.

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <algorithm>
#include <new>
#include <utility>

#include "scanner/rows.hpp"
#include "scanner/values.hpp"

namespace {

template <class Reader> struct Wrapped { PyObject_HEAD Reader* reader; };

template <class Reader> Reader& unwrapped(PyObject* self) { return *reinterpret_cast<Wrapped<Reader>*>(self)->reader; }

Scanner& of(PyObject* self) { return unwrapped<Scanner>(self); }

template <class Reader, class Make> PyObject* wrap(PyTypeObject* type, Make make) {
    const auto allocate = reinterpret_cast<allocfunc>(PyType_GetSlot(type, Py_tp_alloc));
    auto* const self = reinterpret_cast<Wrapped<Reader>*>(allocate(type, 0));
    if (!self) return nullptr;
    self->reader = make();
    if (self->reader) return reinterpret_cast<PyObject*>(self);
    Py_DECREF(reinterpret_cast<PyObject*>(self));
    return PyErr_NoMemory();
}

template <class Reader> void dealloc(PyObject* self) {
    PyTypeObject* const type = Py_TYPE(self);
    delete reinterpret_cast<Wrapped<Reader>*>(self)->reader;
    reinterpret_cast<freefunc>(PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(reinterpret_cast<PyObject*>(type));
}

PyObject* scanner_new(PyTypeObject* type, PyObject* args, PyObject*) {
    PyObject *categorise, *decode;
    if (!PyArg_ParseTuple(args, "OO", &categorise, &decode)) return nullptr;
    return wrap<Scanner>(type, [&] {
        Py_INCREF(categorise), Py_INCREF(decode);
        return new (std::nothrow) Scanner(categorise, decode);
    });
}

struct Buffers {  // borrowed from Python while this lives
    Py_buffer held[kNumColumns + 1];
    int count = 0;
    ~Buffers() { while (count > 0) PyBuffer_Release(&held[--count]); }

    bool borrow(PyObject* owner) {
        if (!owner || PyObject_GetBuffer(owner, &held[count], PyBUF_WRITABLE) < 0) return false;
        return ++count;
    }
    size_t size(int i) const { return size_t(held[i].len); }
    char* at(int i) const { return static_cast<char*>(held[i].buf); }
};

template <class Work> bool run(bool& busy, Work work) {  // without Python's lock
    bool has_memory = true;
    busy = true;
    PyThreadState* const state = PyEval_SaveThread();
    try {
        work();
    } catch (const std::bad_alloc&) {
        has_memory = false;
    }
    PyEval_RestoreThread(state);
    busy = false;
    if (!has_memory) PyErr_NoMemory();
    return has_memory;
}

bool is_ready(const Buffers& buffers, Py_ssize_t from, Py_ssize_t to, bool busy) {
    const bool fits = 0 <= from && from <= to && size_t(to) + kPadding <= buffers.size(0) && buffers.size(0) < UINT32_MAX;
    if (!fits || busy) PyErr_SetString(PyExc_ValueError, "no room behind the text, or at work already");
    return fits && !busy;
}

PyObject* scan(PyObject* self, PyObject* args) {
    PyObject *text, *arrays;
    Py_ssize_t from, to, row;
    int comma_due;
    if (!PyArg_ParseTuple(args, "OnnpO!n", &text, &from, &to, &comma_due, &PyTuple_Type, &arrays, &row)) return nullptr;
    Buffers buffers;
    if (!buffers.borrow(text)) return nullptr;
    Columns columns{{}, SIZE_MAX};
    for (int i = 0; i < kNumColumns; ++i) {
        if (!buffers.borrow(PyTuple_GetItem(arrays, i))) return nullptr;
        columns.at[i] = buffers.at(i + 1);
        columns.room = std::min(columns.room, buffers.size(i + 1) / kWidths[i]);
    }
    Scanner& scanner = of(self);
    if (!is_ready(buffers, from, to, scanner.busy || row < 0)) return nullptr;
    scanner.cursor = {size_t(from), bool(comma_due)}, scanner.row = size_t(row);
    Verdict verdict = kMore;
    if (!run(scanner.busy, [&] { verdict = scanner.scan(buffers.at(0), size_t(to), columns); })) return nullptr;
    PyObject* const due = PyBool_FromLong(scanner.cursor.comma_due);
    return Py_BuildValue("innN", int(verdict), Py_ssize_t(scanner.cursor.position), Py_ssize_t(scanner.row), due);
}

template <class Items, class Make> PyObject* list_of(const Items& items, Make make) {
    PyObject* const list = PyList_New(0);
    for (size_t i = 0; list && i < items.size(); ++i) {
        PyObject* const item = make(items[i]);
        if (!item || PyList_Append(list, item) < 0) { Py_XDECREF(item); Py_DECREF(list); return nullptr; }
        Py_DECREF(item);
    }
    return list;
}

PyObject* as_bytes(Text text) { return PyBytes_FromStringAndSize(text.data(), Py_ssize_t(text.size())); }

template <class Table> PyObject* copied(const Table& table) {
    return as_bytes({reinterpret_cast<const char*>(table.data()), table.size() * sizeof(table[0])});
}

template <class Table> PyObject* taken(Table& table) {
    PyObject* const rows = copied(table);
    table.clear();
    return rows;
}

PyObject* take(PyObject* self, PyObject*) {
    Scanner& scanner = of(self);
    PyObject* const named = list_of(scanner.named, as_bytes);
    scanner.named.clear();
    const long long num_dropped = std::exchange(scanner.num_dropped, 0), num_counters = std::exchange(scanner.num_counters, 0);
    return Py_BuildValue(
        "LLNNNNNN", num_dropped, num_counters, named, taken(scanner.sent), taken(scanner.stacks), taken(scanner.allocations), taken(scanner.waits),
        taken(scanner.nodes));
}

PyObject* intern(PyObject* self, PyObject* text) {
    char* at;
    Py_ssize_t size;
    if (PyBytes_AsStringAndSize(text, &at, &size) < 0) return nullptr;
    try {
        return PyLong_FromLong(of(self).strings.intern({at, size_t(size)}));
    } catch (const std::bad_alloc&) {
        return PyErr_NoMemory();
    }
}

PyObject* strings(PyObject* self, PyObject*) {
    return list_of(of(self).strings, [](Text text) {
        return PyUnicode_DecodeUTF8(text.data(), Py_ssize_t(text.size()), "surrogatepass");
    });
}

PyObject* messages(PyObject* self, PyObject*) { return list_of(of(self).messages, as_bytes); }

// ---- values of chosen keys

PyObject* value_scanner_new(PyTypeObject* type, PyObject* args, PyObject*) {
    PyObject* keys;
    if (!PyArg_ParseTuple(args, "O!", &PyTuple_Type, &keys)) return nullptr;
    const Py_ssize_t count = PyTuple_Size(keys);
    if (size_t(count) > ValueScanner::kMostArguments) return PyErr_Format(PyExc_ValueError, "%zd keys are too many", count);
    std::vector<std::string> names;
    for (Py_ssize_t i = 0; i < count; ++i) {
        char* at;
        Py_ssize_t size;
        if (PyBytes_AsStringAndSize(PyTuple_GetItem(keys, i), &at, &size) < 0) return nullptr;
        names.emplace_back(at, size_t(size));
    }
    return wrap<ValueScanner>(type, [&] { return new (std::nothrow) ValueScanner(std::move(names)); });
}

PyObject* scan_values(PyObject* self, PyObject* args) {
    PyObject* text;
    Py_ssize_t from, to;
    int comma_due;
    if (!PyArg_ParseTuple(args, "Onnp", &text, &from, &to, &comma_due)) return nullptr;
    Buffers buffers;
    auto& scanner = unwrapped<ValueScanner>(self);
    if (!buffers.borrow(text) || !is_ready(buffers, from, to, scanner.busy)) return nullptr;
    scanner.cursor = {size_t(from), bool(comma_due)};
    Verdict verdict = kMore;
    if (!run(scanner.busy, [&] { verdict = scanner.scan(buffers.at(0), size_t(to)); })) return nullptr;
    return Py_BuildValue("inN", int(verdict), Py_ssize_t(scanner.cursor.position), PyBool_FromLong(scanner.cursor.comma_due));
}

PyObject* value_columns(PyObject* self, PyObject*) {
    auto& scanner = unwrapped<ValueScanner>(self);
    PyObject* const columns = list_of(scanner.columns, [](const Cells& cells) {
        return Py_BuildValue(
            "INNNN", cells.kinds, copied(cells.number_rows), copied(cells.numbers), copied(cells.text_rows), copied(cells.texts));
    });
    return Py_BuildValue(
        "iNNNN", scanner.num_events, copied(scanner.index), columns, list_of(scanner.strings, as_bytes),
        list_of(scanner.event_keys(), as_bytes));
}

PyMethodDef value_scanner_methods[] = {
    {"scan", scan_values, METH_VARARGS, "scan(text, start, stop, comma_due) -> (verdict, position, comma_due)"},
    {"columns", value_columns, METH_NOARGS, "columns() -> (number of events, int32 index of rows, [(kinds, int32 rows, int64 numbers, int32 rows, int32 texts)], texts, keys of events)"},
    {nullptr, nullptr, 0, nullptr},
};
PyType_Slot value_scanner_slots[] = {
    {Py_tp_new, reinterpret_cast<void*>(value_scanner_new)}, {Py_tp_dealloc, reinterpret_cast<void*>(dealloc<ValueScanner>)},
    {Py_tp_methods, value_scanner_methods}, {0, nullptr},
};
PyType_Spec value_scanner_spec = {
    "traceq.kineto._scan.ValueScanner", sizeof(Wrapped<ValueScanner>), 0, Py_TPFLAGS_DEFAULT, value_scanner_slots};

// ---- the module

PyMethodDef scanner_methods[] = {
    {"scan", scan, METH_VARARGS, "scan(text, start, stop, comma_due, columns, row) -> (verdict, position, row, comma_due)"},
    {"take", take, METH_NOARGS, "take() -> (number of dropped events, number of counter samples, events that name threads and processes, int64[M, 3] messages, int64[M, 2] stacks, int64[M, 9] allocations, int64[M, 3] waits)"},
    {"intern", intern, METH_O, "intern(bytes) -> number"},
    {"strings", strings, METH_NOARGS, "strings() -> [str]"},
    {"messages", messages, METH_NOARGS, "messages() -> [JSON of the arguments, NUL, name]"},
    {nullptr, nullptr, 0, nullptr},
};
PyType_Slot scanner_slots[] = {
    {Py_tp_new, reinterpret_cast<void*>(scanner_new)}, {Py_tp_dealloc, reinterpret_cast<void*>(dealloc<Scanner>)},
    {Py_tp_methods, scanner_methods}, {0, nullptr},
};
PyType_Spec scanner_spec = {"traceq.kineto._scan.Scanner", sizeof(Wrapped<Scanner>), 0, Py_TPFLAGS_DEFAULT, scanner_slots};
PyModuleDef module = {PyModuleDef_HEAD_INIT, "_scan", "Kineto events to columns.", -1, nullptr, nullptr, nullptr, nullptr, nullptr};

}  // namespace

PyMODINIT_FUNC PyInit__scan() {
    PyObject* const self = PyModule_Create(&module);
    if (!self) return nullptr;
    const std::pair<const char*, PyType_Spec*> types[] = {{"Scanner", &scanner_spec}, {"ValueScanner", &value_scanner_spec}};
    for (const auto& [name, spec] : types) {
        PyObject* const type = PyType_FromSpec(spec);
        if (!type || PyModule_AddObject(self, name, type) < 0) return nullptr;
    }
    PyModule_AddIntConstant(self, "MORE", kMore);
    PyModule_AddIntConstant(self, "FULL", kFull);
    PyModule_AddIntConstant(self, "PADDING", kPadding);
    PyModule_AddIntConstant(self, "BY_NAME", kByName);
    PyModule_AddStringConstant(self, "COLUMNS", kColumnNames);
    PyModule_AddStringConstant(self, "SOURCES", TRACEQ_SOURCES);
    return self;
}
