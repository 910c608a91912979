// Kineto events from JSON text to columns, without a Python object per event.

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <memory>
#include <stdexcept>
#include <utility>
#include <vector>

#include "scanner/rows.hpp"

namespace {

struct ScannerObject { PyObject_HEAD Scanner* scanner; };
struct ColumnObject { PyObject_HEAD Block block; size_t skew, size; };

PyTypeObject* column_type = nullptr;

// Runs what may throw; a C++ fault becomes a Python one.
template <class Body> PyObject* guarded(Body body) {
    try {
        return body();
    } catch (const std::bad_alloc&) {
        return PyErr_NoMemory();
    } catch (const std::exception& fault) {
        PyErr_SetString(PyExc_RuntimeError, fault.what());
        return nullptr;
    }
}

template <class Object> Object* allocate(PyTypeObject* type) {
    const auto make = reinterpret_cast<allocfunc>(PyType_GetSlot(type, Py_tp_alloc));
    return reinterpret_cast<Object*>(make(type, 0));
}

void release(PyObject* self) {
    PyTypeObject* const type = Py_TYPE(self);
    reinterpret_cast<freefunc>(PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(reinterpret_cast<PyObject*>(type));
}

void column_dealloc(PyObject* self) {
    const Block block = reinterpret_cast<ColumnObject*>(self)->block;
    if (block.at) resize(block.at, block.size, 0);
    release(self);
}

int column_buffer(PyObject* self, Py_buffer* view, int flags) {
    const auto* column = reinterpret_cast<ColumnObject*>(self);
    return PyBuffer_FillInfo(view, self, column->block.at + column->skew, Py_ssize_t(column->size), 0, flags);
}

PyObject* scanner_new(PyTypeObject* type, PyObject* args, PyObject*) {
    PyObject *categorise, *by_name;
    if (!PyArg_ParseTuple(args, "OO!", &categorise, &PyTuple_Type, &by_name)) return nullptr;
    return guarded([&]() -> PyObject* {
        auto scanner = std::make_unique<Scanner>(categorise);
        for (Py_ssize_t i = 0; i < PyTuple_Size(by_name); ++i) {
            const char* const text = PyUnicode_AsUTF8AndSize(PyTuple_GetItem(by_name, i), nullptr);
            if (!text) return nullptr;
            scanner->by_name.emplace_back(text);
        }
        auto* const self = allocate<ScannerObject>(type);
        if (!self) return nullptr;
        Py_INCREF(categorise);
        self->scanner = scanner.release();
        return reinterpret_cast<PyObject*>(self);
    });
}

void scanner_dealloc(PyObject* self) {
    if (Scanner* const scanner = reinterpret_cast<ScannerObject*>(self)->scanner) {
        Py_DECREF(scanner->categorise());
        delete scanner;
    }
    release(self);
}

Scanner& of(PyObject* self) { return *reinterpret_cast<ScannerObject*>(self)->scanner; }

PyObject* scan(PyObject* self, PyObject* args) {
    Py_buffer text;
    Py_ssize_t from, to;
    int comma_due;
    if (!PyArg_ParseTuple(args, "w*nnp", &text, &from, &to, &comma_due)) return nullptr;
    Scanner& scanner = of(self);
    const bool fits = from >= 0 && from <= to && to + Py_ssize_t(kPadding) <= text.len && text.len < Py_ssize_t(UINT32_MAX);
    PyObject* const verdict = guarded([&]() -> PyObject* {
        if (!fits || scanner.busy) throw std::runtime_error(fits ? "the scanner is at work" : "no room behind the text");
        scanner.busy = true;
        PyThreadState* const state = PyEval_SaveThread();
        Verdict found = kMore;
        bool out_of_memory = false;
        try {
            found = scanner.scan(static_cast<char*>(text.buf), size_t(from), size_t(to), comma_due != 0);
        } catch (const std::bad_alloc&) {
            out_of_memory = true;
        }
        PyEval_RestoreThread(state);
        scanner.busy = false;
        if (out_of_memory) throw std::bad_alloc();
        return Py_BuildValue("inN", int(found), Py_ssize_t(scanner.position), PyBool_FromLong(scanner.comma_due));
    });
    PyBuffer_Release(&text);
    return verdict;
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

PyObject* take_rare(PyObject* self, PyObject*) {
    const std::vector<Rare> rare = std::exchange(of(self).rare, {});
    return list_of(rare, [](const Rare& each) {
        return Py_BuildValue("Ls#y#", static_cast<long long>(each.row), each.name.data(), Py_ssize_t(each.name.size()),
                             each.body.data(), Py_ssize_t(each.body.size()));
    });
}

PyObject* take_allocations(PyObject* self, PyObject*) {
    const std::vector<Allocation> taken = std::exchange(of(self).allocations, {});
    return PyBytes_FromStringAndSize(reinterpret_cast<const char*>(taken.data()), Py_ssize_t(taken.size() * sizeof(Allocation)));
}

PyObject* intern(PyObject* self, PyObject* texts) {
    return guarded([&]() -> PyObject* {
        std::vector<int32_t> ids;
        for (Py_ssize_t i = 0; i < PyList_Size(texts); ++i) {
            char* text;
            Py_ssize_t size;
            if (PyBytes_AsStringAndSize(PyList_GetItem(texts, i), &text, &size) < 0) return nullptr;
            ids.push_back(of(self).strings.intern({text, size_t(size)}));
        }
        return PyErr_Occurred() ? nullptr : list_of(ids, [](int32_t id) { return PyLong_FromLong(id); });
    });
}

PyObject* extend(PyObject* self, PyObject* arrays) {
    Py_buffer parts[kNumColumns];
    int count = 0;
    const bool fits = PyList_Check(arrays) && PyList_Size(arrays) == kNumColumns;
    while (fits && count < kNumColumns && !PyObject_GetBuffer(PyList_GetItem(arrays, count), &parts[count], PyBUF_SIMPLE)) ++count;
    PyObject* const done = guarded([&]() -> PyObject* {
        if (PyErr_Occurred()) return nullptr;
        const size_t rows = fits ? size_t(parts[0].len) / kWidths[0] : 0;
        for (int i = 0; i < count; ++i)
            if (size_t(parts[i].len) != rows * kWidths[i]) throw std::runtime_error("columns of different lengths");
        if (!fits) throw std::runtime_error("not a list of all columns");
        of(self).columns.extend(parts, rows);
        return Py_BuildValue("");
    });
    while (count > 0) PyBuffer_Release(&parts[--count]);
    return done;
}

PyObject* finish(PyObject* self, PyObject*) {
    Scanner& scanner = of(self);
    PyObject* const columns = PyList_New(0);
    for (int i = 0; columns && i < kNumColumns; ++i) {
        auto* const column = allocate<ColumnObject>(column_type);
        if (!column) { Py_DECREF(columns); return nullptr; }
        column->skew = Columns::skew(i);
        column->size = scanner.columns.size() * kWidths[i];
        column->block = scanner.columns.take(i);
        const int failed = PyList_Append(columns, reinterpret_cast<PyObject*>(column));
        Py_DECREF(reinterpret_cast<PyObject*>(column));
        if (failed) { Py_DECREF(columns); return nullptr; }
    }
    scanner.columns.reset();
    PyObject* const strings = list_of(scanner.strings, [](Text text) {
        return PyUnicode_DecodeUTF8(text.at, Py_ssize_t(text.size), "surrogatepass");
    });
    PyObject* const stacks = list_of(scanner.stacks, [](const std::pair<int64_t, int32_t>& each) {
        return Py_BuildValue("Li", static_cast<long long>(each.first), int(each.second));
    });
    return columns && strings && stacks ? Py_BuildValue("NNN", columns, strings, stacks) : nullptr;
}

PyObject* num_rows(PyObject* self, void*) { return PyLong_FromSize_t(of(self).columns.size()); }
PyObject* num_dropped(PyObject* self, void*) { return PyLong_FromLongLong(of(self).num_dropped); }

PyMethodDef scanner_methods[] = {
    {"scan", scan, METH_VARARGS, "scan(buffer, start, stop, comma_due) -> (verdict, position, comma_due)"},
    {"take_rare", take_rare, METH_NOARGS, "take_rare() -> [(row, name, json)]"},
    {"take_allocations", take_allocations, METH_NOARGS, "take_allocations() -> bytes of int64 rows"},
    {"intern", intern, METH_O, "intern([bytes]) -> [id]"},
    {"extend", extend, METH_O, "extend([column]) -> None"},
    {"finish", finish, METH_NOARGS, "finish() -> (columns, strings, [(row, stack)])"},
    {nullptr, nullptr, 0, nullptr},
};
PyGetSetDef scanner_properties[] = {
    {"num_rows", num_rows, nullptr, "Rows so far.", nullptr},
    {"num_dropped", num_dropped, nullptr, "Complete events without a usable time.", nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr},
};

#define TRACEQ_SLOT(function) reinterpret_cast<void*>(function)
PyType_Slot scanner_slots[] = {
    {Py_tp_new, TRACEQ_SLOT(scanner_new)}, {Py_tp_dealloc, TRACEQ_SLOT(scanner_dealloc)},
    {Py_tp_methods, scanner_methods}, {Py_tp_getset, scanner_properties}, {0, nullptr},
};
PyType_Slot column_slots[] = {
    {Py_tp_dealloc, TRACEQ_SLOT(column_dealloc)}, {Py_bf_getbuffer, TRACEQ_SLOT(column_buffer)}, {0, nullptr},
};
PyType_Spec scanner_spec = {"traceq.kineto._scan.Scanner", sizeof(ScannerObject), 0, Py_TPFLAGS_DEFAULT, scanner_slots};
PyType_Spec column_spec = {
    "traceq.kineto._scan.Column", sizeof(ColumnObject), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, column_slots};

PyModuleDef module = {PyModuleDef_HEAD_INIT, "_scan", "Kineto events to columns.", -1, nullptr, nullptr, nullptr, nullptr, nullptr};

}  // namespace

PyMODINIT_FUNC PyInit__scan() {
    PyObject* const self = PyModule_Create(&module);
    PyObject* const scanner = PyType_FromSpec(&scanner_spec);
    column_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&column_spec));
    if (!self || !scanner || !column_type || PyModule_AddObject(self, "Scanner", scanner) < 0) return nullptr;
    PyModule_AddIntConstant(self, "NUM_COLUMNS", kNumColumns);
    PyModule_AddIntConstant(self, "MORE", kMore);
    PyModule_AddIntConstant(self, "CLOSED", kClosed);
    PyModule_AddIntConstant(self, "HAND_OVER", kHandOver);
    PyModule_AddIntConstant(self, "PADDING", kPadding);
    return self;
}
