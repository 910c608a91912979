// Kineto events from JSON text to columns, without a Python object per event.

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <algorithm>
#include <new>
#include <utility>

#include "scanner/rows.hpp"

namespace {

struct ScannerObject { PyObject_HEAD Scanner* scanner; };

Scanner& of(PyObject* self) { return *reinterpret_cast<ScannerObject*>(self)->scanner; }

PyObject* scanner_new(PyTypeObject* type, PyObject* args, PyObject*) {
    PyObject *categorise, *decode;
    if (!PyArg_ParseTuple(args, "OO", &categorise, &decode)) return nullptr;
    const auto allocate = reinterpret_cast<allocfunc>(PyType_GetSlot(type, Py_tp_alloc));
    auto* const self = reinterpret_cast<ScannerObject*>(allocate(type, 0));
    if (!self) return nullptr;
    Py_INCREF(categorise), Py_INCREF(decode);
    self->scanner = new (std::nothrow) Scanner(categorise, decode);
    if (self->scanner) return reinterpret_cast<PyObject*>(self);
    Py_DECREF(reinterpret_cast<PyObject*>(self));
    return PyErr_NoMemory();
}

void scanner_dealloc(PyObject* self) {
    PyTypeObject* const type = Py_TYPE(self);
    delete reinterpret_cast<ScannerObject*>(self)->scanner;
    reinterpret_cast<freefunc>(PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(reinterpret_cast<PyObject*>(type));
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
    const bool fits = 0 <= from && from <= to && size_t(to) + kPadding <= buffers.size(0) && buffers.size(0) < UINT32_MAX;
    if (!fits || row < 0 || scanner.busy) return PyErr_Format(PyExc_ValueError, "no room behind the text, or at work already");
    scanner.position = size_t(from), scanner.row = size_t(row), scanner.comma_due = comma_due, scanner.busy = true;
    Verdict verdict = kMore;
    bool has_memory = true;
    PyThreadState* const state = PyEval_SaveThread();
    try {
        verdict = scanner.scan(buffers.at(0), size_t(to), columns);
    } catch (const std::bad_alloc&) {
        has_memory = false;
    }
    PyEval_RestoreThread(state);
    scanner.busy = false;
    if (!has_memory) return PyErr_NoMemory();
    PyObject* const due = PyBool_FromLong(scanner.comma_due);
    return Py_BuildValue("innN", int(verdict), Py_ssize_t(scanner.position), Py_ssize_t(scanner.row), due);
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

template <class Table> PyObject* taken(Table& table) {
    PyObject* const found = as_bytes({reinterpret_cast<const char*>(table.data()), table.size() * sizeof(table[0])});
    table.clear();
    return found;
}

PyObject* take(PyObject* self, PyObject*) {
    Scanner& scanner = of(self);
    PyObject* const threads = list_of(scanner.threads, as_bytes);
    scanner.threads.clear();
    const long long num_dropped = std::exchange(scanner.num_dropped, 0);
    return Py_BuildValue(
        "LNNNNN", num_dropped, threads, taken(scanner.sent), taken(scanner.stacks), taken(scanner.allocations), taken(scanner.waits));
}

PyObject* ids_in(Strings& ours, const Strings& theirs, std::vector<int32_t>& ids) {
    while (ids.size() < theirs.size()) ids.push_back(ours.intern(theirs[ids.size()]));
    return as_bytes({reinterpret_cast<const char*>(ids.data()), ids.size() * sizeof(ids[0])});
}

PyObject* adopt(PyObject* self, PyObject* other) {
    if (Py_TYPE(other) != Py_TYPE(self)) return PyErr_Format(PyExc_TypeError, "a Scanner is wanted");
    Scanner &ours = of(self), &theirs = of(other);
    try {
        PyObject* const strings = ids_in(ours.strings, theirs.strings, theirs.ids_of_strings);
        return Py_BuildValue("NN", strings, ids_in(ours.messages, theirs.messages, theirs.ids_of_messages));
    } catch (const std::bad_alloc&) {
        return PyErr_NoMemory();
    }
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

PyMethodDef scanner_methods[] = {
    {"scan", scan, METH_VARARGS, "scan(text, start, stop, comma_due, columns, row) -> (verdict, position, row, comma_due)"},
    {"take", take, METH_NOARGS, "take() -> (number of dropped events, names of threads, int64[M, 3] messages, int64[M, 2] stacks, int64[M, 9] allocations, int64[M, 3] waits)"},
    {"adopt", adopt, METH_O, "adopt(Scanner) -> (int32 numbers here of its strings, of its messages); always by the same one"},
    {"intern", intern, METH_O, "intern(bytes) -> number"},
    {"strings", strings, METH_NOARGS, "strings() -> [str]"},
    {"messages", messages, METH_NOARGS, "messages() -> [JSON of the arguments, NUL, name]"},
    {nullptr, nullptr, 0, nullptr},
};
PyType_Slot scanner_slots[] = {
    {Py_tp_new, reinterpret_cast<void*>(scanner_new)}, {Py_tp_dealloc, reinterpret_cast<void*>(scanner_dealloc)},
    {Py_tp_methods, scanner_methods}, {0, nullptr},
};
PyType_Spec scanner_spec = {"traceq.kineto._scan.Scanner", sizeof(ScannerObject), 0, Py_TPFLAGS_DEFAULT, scanner_slots};
PyModuleDef module = {PyModuleDef_HEAD_INIT, "_scan", "Kineto events to columns.", -1, nullptr, nullptr, nullptr, nullptr, nullptr};

}  // namespace

PyMODINIT_FUNC PyInit__scan() {
    PyObject* const self = PyModule_Create(&module);
    PyObject* const scanner = PyType_FromSpec(&scanner_spec);
    if (!self || !scanner || PyModule_AddObject(self, "Scanner", scanner) < 0) return nullptr;
    PyModule_AddIntConstant(self, "MORE", kMore);
    PyModule_AddIntConstant(self, "FULL", kFull);
    PyModule_AddIntConstant(self, "PADDING", kPadding);
    PyModule_AddIntConstant(self, "BY_NAME", kByName);
    PyModule_AddStringConstant(self, "COLUMNS", kColumnNames);
    PyModule_AddStringConstant(self, "SOURCES", TRACEQ_SOURCES);
    return self;
}
