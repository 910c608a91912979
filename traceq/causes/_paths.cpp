// Longest paths through a graph whose edges run forwards: the loops that cannot be written in columns.
// Numbers of nodes and edges are int32, times and weights int64.

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <cstdint>
#include <limits>

namespace {

// Contiguous buffers of the arguments, the last of which are written to; released at the end.
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
    int64_t* operator[](int index) const { return of<int64_t>(index); }
    Py_ssize_t size(int index) const { return size_of<int64_t>(index); }

    template <typename Number>
    Number* of(int index) const {
        return static_cast<Number*>(views_[index].buf);
    }
    template <typename Number>
    Py_ssize_t size_of(int index) const {
        return views_[index].len / Py_ssize_t(sizeof(Number));
    }

private:
    Py_buffer views_[kNum];
    int held_ = 0;
};

inline PyObject* unequal_lengths() {
    PyErr_SetString(PyExc_ValueError, "columns of unequal length");
    return nullptr;
}

using Number = int32_t;

PyObject* longest_paths(PyObject*, PyObject* args) {
    PyObject* owners[5];
    if (!PyArg_ParseTuple(args, "OOOOO", &owners[0], &owners[1], &owners[2], &owners[3], &owners[4])) return nullptr;
    Columns<5> columns;
    if (!columns.hold(owners, 2)) return nullptr;
    const Number *first = columns.of<Number>(0), *source = columns.of<Number>(1);
    const int64_t* weight = columns[2];
    int64_t* time = columns[3];
    Number* choice = columns.of<Number>(4);
    const Py_ssize_t num = columns.size(3), edges = columns.size_of<Number>(1);
    if (columns.size_of<Number>(0) != num + 1 || columns.size(2) != edges || columns.size_of<Number>(4) != num || first[num] != edges) return unequal_lengths();
    Py_BEGIN_ALLOW_THREADS
    for (Py_ssize_t node = 0; node < num; ++node) {
        int64_t latest = std::numeric_limits<int64_t>::min();
        Number chosen = -1;
        for (Number edge = first[node]; edge < first[node + 1]; ++edge) {
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
    const Number *choice = columns.of<Number>(0), *source = columns.of<Number>(1);
    Number* path = columns.of<Number>(2);
    Py_ssize_t num = 0;
    for (; choice[node] >= 0; node = source[choice[node]]) path[num++] = choice[node];
    return PyLong_FromSsize_t(num);
}

// Hands the number of each path back from node to node, as long as it is after `since`; `path` is -1 elsewhere.
PyObject* paths_to(PyObject*, PyObject* args) {
    PyObject* owners[5];
    if (!PyArg_ParseTuple(args, "OOOOO", &owners[0], &owners[1], &owners[2], &owners[3], &owners[4])) return nullptr;
    Columns<5> columns;
    if (!columns.hold(owners, 1)) return nullptr;
    const int64_t *since = columns[0], *time = columns[3];
    const Number *choice = columns.of<Number>(1), *source = columns.of<Number>(2);
    Number* path = columns.of<Number>(4);
    for (Py_ssize_t node = columns.size_of<Number>(4); node-- > 0;) {
        if (path[node] < 0 || choice[node] < 0) continue;
        const Number before = source[choice[node]];
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
    const Number *first = columns.of<Number>(0), *target = columns.of<Number>(1), *ready = columns.of<Number>(2);
    Number *degree = columns.of<Number>(3), *queue = columns.of<Number>(4);
    Py_ssize_t last = columns.size_of<Number>(2);
    for (Py_ssize_t index = 0; index < last; ++index) queue[index] = ready[index];
    for (Py_ssize_t index = 0; index < last; ++index)
        for (Number edge = first[queue[index]]; edge < first[queue[index] + 1]; ++edge)
            if (--degree[target[edge]] == 0) queue[last++] = target[edge];
    return PyLong_FromSsize_t(last);
}

// The first edge with the least slack into each node that has any.
PyObject* least_into_each(PyObject*, PyObject* args) {
    PyObject* owners[3];
    if (!PyArg_ParseTuple(args, "OOO", &owners[0], &owners[1], &owners[2])) return nullptr;
    Columns<3> columns;
    if (!columns.hold(owners, 1)) return nullptr;
    const Number* first = columns.of<Number>(0);
    const int64_t* slack = columns[1];
    Number* chosen = columns.of<Number>(2);
    const Py_ssize_t num = columns.size_of<Number>(0) - 1;
    if (columns.size_of<Number>(2) != num || first[num] != columns.size(1)) return unequal_lengths();
    Py_ssize_t num_chosen = 0;
    Py_BEGIN_ALLOW_THREADS
    for (Py_ssize_t node = 0; node < num; ++node) {
        if (first[node] == first[node + 1]) continue;
        Number least = first[node];
        for (Number edge = least + 1; edge < first[node + 1]; ++edge)
            if (slack[edge] < slack[least]) least = edge;
        chosen[num_chosen++] = least;
    }
    Py_END_ALLOW_THREADS
    return PyLong_FromSsize_t(num_chosen);
}

// Follows each chain up to a mark, to its end, or to a position of which the mark is already clear.
PyObject* next_marked(PyObject*, PyObject* args) {
    PyObject* owners[3];
    if (!PyArg_ParseTuple(args, "OOO", &owners[0], &owners[1], &owners[2])) return nullptr;
    Columns<3> columns;
    if (!columns.hold(owners, 1)) return nullptr;
    const Number *marked = columns.of<Number>(0), *following = columns.of<Number>(1);
    Number* nearest = columns.of<Number>(2);
    const Py_ssize_t num = columns.size_of<Number>(2);
    if (columns.size_of<Number>(0) != num || columns.size_of<Number>(1) != num) return unequal_lengths();
    constexpr Number kOpen = std::numeric_limits<Number>::min();
    Py_BEGIN_ALLOW_THREADS
    for (Py_ssize_t index = 0; index < num; ++index) {
        const bool ends = marked[index] >= 0 || following[index] < 0;
        nearest[index] = ends ? marked[index] : kOpen;
    }
    for (Py_ssize_t index = 0; index < num; ++index) {
        Py_ssize_t end = index;
        while (nearest[end] == kOpen) end = following[end];
        for (Py_ssize_t open = index; nearest[open] == kOpen; open = following[open]) nearest[open] = nearest[end];
    }
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

PyMethodDef functions[] = {
    {"longest_paths", longest_paths, METH_VARARGS, "longest_paths(first, source, weight, time, choice) -> None"},
    {"trace_back", trace_back, METH_VARARGS, "trace_back(node, choice, source, path) -> number of edges"},
    {"paths_to", paths_to, METH_VARARGS, "paths_to(since, choice, source, time, path) -> None"},
    {"least_into_each", least_into_each, METH_VARARGS, "least_into_each(first, slack, chosen) -> number of edges"},
    {"next_marked", next_marked, METH_VARARGS, "next_marked(marked, following, nearest) -> None"},
    {"topological_order", topological_order, METH_VARARGS, "topological_order(first, target, ready, degree, queue) -> number of nodes"},
    {nullptr, nullptr, 0, nullptr},
};
PyModuleDef module = {PyModuleDef_HEAD_INIT, "_paths", "Longest paths.", -1, functions, nullptr, nullptr, nullptr, nullptr};

}  // namespace

PyMODINIT_FUNC PyInit__paths() {
    PyObject* created = PyModule_Create(&module);
    if (created && PyModule_AddIntConstant(created, "NUMBER_BYTES", sizeof(Number)) < 0) Py_CLEAR(created);
    return created;
}
