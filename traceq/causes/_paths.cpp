// Longest paths through a graph whose edges run forwards: the loops that cannot be written in columns.

#include "../int64_columns.hpp"

#include <limits>

namespace {

PyObject* longest_paths(PyObject*, PyObject* args) {
    PyObject* owners[5];
    if (!PyArg_ParseTuple(args, "OOOOO", &owners[0], &owners[1], &owners[2], &owners[3], &owners[4])) return nullptr;
    Columns<5> columns;
    if (!columns.hold(owners, 2)) return nullptr;
    const int64_t *first = columns[0], *source = columns[1], *weight = columns[2];
    int64_t *time = columns[3], *choice = columns[4];
    const Py_ssize_t num = columns.size(3), edges = columns.size(1);
    if (columns.size(0) != num + 1 || columns.size(2) != edges || columns.size(4) != num || first[num] != edges) return unequal_lengths();
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

// The first edge with the least slack into each node that has any.
PyObject* least_into_each(PyObject*, PyObject* args) {
    PyObject* owners[3];
    if (!PyArg_ParseTuple(args, "OOO", &owners[0], &owners[1], &owners[2])) return nullptr;
    Columns<3> columns;
    if (!columns.hold(owners, 1)) return nullptr;
    const int64_t *first = columns[0], *slack = columns[1];
    int64_t* chosen = columns[2];
    const Py_ssize_t num = columns.size(0) - 1;
    if (columns.size(2) != num || first[num] != columns.size(1)) return unequal_lengths();
    Py_ssize_t num_chosen = 0;
    Py_BEGIN_ALLOW_THREADS
    for (Py_ssize_t node = 0; node < num; ++node) {
        if (first[node] == first[node + 1]) continue;
        int64_t least = first[node];
        for (int64_t edge = least + 1; edge < first[node + 1]; ++edge)
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
    const int64_t *marked = columns[0], *following = columns[1];
    int64_t* nearest = columns[2];
    const Py_ssize_t num = columns.size(2);
    if (columns.size(0) != num || columns.size(1) != num) return unequal_lengths();
    constexpr int64_t kOpen = std::numeric_limits<int64_t>::min();
    Py_BEGIN_ALLOW_THREADS
    for (Py_ssize_t index = 0; index < num; ++index) {
        const bool ends = marked[index] >= 0 || following[index] < 0;
        nearest[index] = ends ? marked[index] : kOpen;
    }
    for (Py_ssize_t index = 0; index < num; ++index) {
        int64_t end = index;
        while (nearest[end] == kOpen) end = following[end];
        for (int64_t open = index; nearest[open] == kOpen; open = following[open]) nearest[open] = nearest[end];
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

PyMODINIT_FUNC PyInit__paths() { return PyModule_Create(&module); }
