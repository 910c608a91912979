// Longest paths through a graph whose edges run forwards: the loops that cannot be written in columns.

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <cstdint>
#include <limits>

namespace {

// Contiguous int64 buffers of the arguments, released at the end.
template <int kNum>
class Columns {
public:
    ~Columns() {
        while (held_ > 0) PyBuffer_Release(&views_[--held_]);
    }
    bool hold(PyObject* const (&owners)[kNum], int num_written) {
        for (int index = 0; index < kNum; ++index) {
            const int flags = index >= kNum - num_written ? PyBUF_WRITABLE : PyBUF_SIMPLE;
            if (PyObject_GetBuffer(owners[index], &views_[index], flags) < 0) return false;
            ++held_;
        }
        return true;
    }
    int64_t* operator[](int index) const { return static_cast<int64_t*>(views_[index].buf); }
    Py_ssize_t size(int index) const { return views_[index].len / Py_ssize_t(sizeof(int64_t)); }

private:
    Py_buffer views_[kNum];
    int held_ = 0;
};

PyObject* longest_paths(PyObject*, PyObject* args) {
    PyObject* owners[5];
    if (!PyArg_ParseTuple(args, "OOOOO", &owners[0], &owners[1], &owners[2], &owners[3], &owners[4])) return nullptr;
    Columns<5> columns;
    if (!columns.hold(owners, 2)) return nullptr;
    const int64_t *first = columns[0], *source = columns[1], *weight = columns[2];
    int64_t *time = columns[3], *choice = columns[4];
    const Py_ssize_t num = columns.size(3), edges = columns.size(1);
    if (columns.size(0) != num + 1 || columns.size(2) != edges || columns.size(4) != num || first[num] != edges) {
        PyErr_SetString(PyExc_ValueError, "columns of unequal length");
        return nullptr;
    }
    Py_BEGIN_ALLOW_THREADS
    for (Py_ssize_t node = 0; node < num; ++node) {
        int64_t latest = std::numeric_limits<int64_t>::min(), chosen = -1;
        for (int64_t edge = first[node]; edge < first[node + 1]; ++edge) {
            const int64_t arrival = time[source[edge]] + weight[edge];
            if (arrival > latest) latest = arrival, chosen = edge;
        }
        time[node] = chosen < 0 ? 0 : latest;
        choice[node] = chosen;
    }
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

PyObject* trace_back(PyObject*, PyObject* args) {
    PyObject* owners[3];
    Py_ssize_t node;
    if (!PyArg_ParseTuple(args, "nOOO", &node, &owners[0], &owners[1], &owners[2])) return nullptr;
    Columns<3> columns;
    if (!columns.hold(owners, 1)) return nullptr;
    const int64_t *choice = columns[0], *source = columns[1];
    int64_t* path = columns[2];
    Py_ssize_t num = 0;
    for (; choice[node] >= 0; node = Py_ssize_t(source[choice[node]])) path[num++] = choice[node];
    return PyLong_FromSsize_t(num);
}

// Hands the number of each path back from node to node, as long as it is after `since`; `path` is -1 elsewhere.
PyObject* paths_to(PyObject*, PyObject* args) {
    PyObject* owners[5];
    if (!PyArg_ParseTuple(args, "OOOOO", &owners[0], &owners[1], &owners[2], &owners[3], &owners[4])) return nullptr;
    Columns<5> columns;
    if (!columns.hold(owners, 1)) return nullptr;
    const int64_t *since = columns[0], *choice = columns[1], *source = columns[2], *time = columns[3];
    int64_t* path = columns[4];
    for (Py_ssize_t node = columns.size(4); node-- > 0;) {
        if (path[node] < 0 || choice[node] < 0) continue;
        const int64_t before = source[choice[node]];
        if (time[before] > since[path[node]]) path[before] = path[node];
    }
    Py_RETURN_NONE;
}

// Kahn's algorithm; `queue` receives the nodes in order, `degree` and `first` are scratch.
PyObject* topological_order(PyObject*, PyObject* args) {
    PyObject* owners[5];
    if (!PyArg_ParseTuple(args, "OOOOO", &owners[0], &owners[1], &owners[2], &owners[3], &owners[4])) return nullptr;
    Columns<5> columns;
    if (!columns.hold(owners, 2)) return nullptr;
    const int64_t *first = columns[0], *target = columns[1], *ready = columns[2];
    int64_t *degree = columns[3], *queue = columns[4];
    Py_ssize_t last = columns.size(2);
    for (Py_ssize_t index = 0; index < last; ++index) queue[index] = ready[index];
    for (Py_ssize_t index = 0; index < last; ++index)
        for (int64_t edge = first[queue[index]]; edge < first[queue[index] + 1]; ++edge)
            if (--degree[target[edge]] == 0) queue[last++] = target[edge];
    return PyLong_FromSsize_t(last);
}

PyMethodDef functions[] = {
    {"longest_paths", longest_paths, METH_VARARGS, "longest_paths(first, source, weight, time, choice) -> None"},
    {"trace_back", trace_back, METH_VARARGS, "trace_back(node, choice, source, path) -> number of edges"},
    {"paths_to", paths_to, METH_VARARGS, "paths_to(since, choice, source, time, path) -> None"},
    {"topological_order", topological_order, METH_VARARGS, "topological_order(first, target, ready, degree, queue) -> number of nodes"},
    {nullptr, nullptr, 0, nullptr},
};
PyModuleDef module = {PyModuleDef_HEAD_INIT, "_paths", "Longest paths.", -1, functions, nullptr, nullptr, nullptr, nullptr};

}  // namespace

PyMODINIT_FUNC PyInit__paths() { return PyModule_Create(&module); }
