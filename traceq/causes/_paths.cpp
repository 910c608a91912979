// Longest paths through a graph whose edges run forwards, and edit scripts: loops that cannot be written in columns.
// Numbers of nodes and edges are int32, times and weights int64.

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

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

// How far edit scripts of two sequences get (Myers, An O(ND) Difference Algorithm, 1986): by diagonal, of which every
// second one is reached by a number of edits, the furthest element of `a`. Few of these rows are kept, and the ones
// between them computed again.
class EditRows {
public:
    using Row = std::vector<Number>;
    EditRows(const int64_t* a, Number size_a, const int64_t* b, Number size_b)
        : a_(a), b_(b), size_a_(size_a), size_b_(size_b) {}

    // The least number of edits; -1 if it is more than `most`.
    Number least(Number most) {
        Row row;
        for (Number edits = 0; edits <= most; ++edits) {
            row = next(row, edits);
            if (edits % kStride == 0) kept_.push_back(row);
            const Number index = (size_a_ - size_b_ + edits) / 2;
            const bool is_on_it = (size_a_ - size_b_ + edits) % 2 == 0 && index >= 0 && index <= edits;
            if (is_on_it && row[index] == size_a_) return edits;
        }
        return -1;
    }
    // Rows are asked for from the last one on.
    const Row& row(Number edits) {
        const Number first = edits / kStride * kStride;
        if (first != first_) {
            rows_.assign(1, kept_[first / kStride]);
            for (first_ = first; Number(rows_.size()) <= edits - first;)
                rows_.push_back(next(rows_.back(), first + Number(rows_.size())));
        }
        return rows_[edits - first];
    }
    // Whether a diagonal is reached by an element of `b` alone from the one below it, else by one of `a` from above.
    static bool is_from_below(const Row& before, Number index) {
        return index == 0 || (index != Number(before.size()) && before[index - 1] < before[index]);
    }

private:
    static constexpr Number kStride = 256, kNowhere = std::numeric_limits<Number>::min() / 2;

    Row next(const Row& before, Number edits) const {
        Row row(edits + 1, kNowhere);
        for (Number index = 0; index <= edits; ++index) {
            Number x = 0;
            if (edits) x = is_from_below(before, index) ? before[index] : before[index - 1] + 1;
            Number y = x - (2 * index - edits);
            if (x > size_a_ || y > size_b_ || y < 0) continue;
            while (x < size_a_ && y < size_b_ && a_[x] == b_[y]) ++x, ++y;
            row[index] = x;
        }
        return row;
    }

    const int64_t *a_, *b_;
    Number size_a_, size_b_, first_ = -1;
    std::vector<Row> kept_, rows_;
};

// Writes the pairs that a shortest edit script keeps to the ends of two columns.
PyObject* shortest_edits(PyObject*, PyObject* args) {
    PyObject* owners[4];
    int most;
    if (!PyArg_ParseTuple(args, "OOiOO", &owners[0], &owners[1], &most, &owners[2], &owners[3])) return nullptr;
    Columns<4> columns;
    if (!columns.hold(owners, 2)) return nullptr;
    int64_t *in_a = columns[2], *in_b = columns[3];
    Number x = Number(columns.size(0)), y = Number(columns.size(1));
    const Py_ssize_t room = columns.size(2);
    if (room != columns.size(3) || room < std::min(x, y)) return unequal_lengths();
    Py_ssize_t free = room;
    Number edits;
    Py_BEGIN_ALLOW_THREADS
    EditRows rows(columns[0], x, columns[1], y);
    edits = rows.least(most);
    for (Number num = edits; num >= 0; --num) {
        Number x_begin = 0;
        bool from_below = false;
        if (num) {
            const Number index = (x - y + num) / 2;
            const EditRows::Row& before = rows.row(num - 1);
            from_below = EditRows::is_from_below(before, index);
            x_begin = from_below ? before[index] : before[index - 1] + 1;
        }
        while (x > x_begin) --free, in_a[free] = --x, in_b[free] = --y;
        if (from_below) --y;
        else --x;
    }
    Py_END_ALLOW_THREADS
    return PyLong_FromSsize_t(edits < 0 ? -1 : room - free);
}

PyMethodDef functions[] = {
    {"shortest_edits", shortest_edits, METH_VARARGS, "shortest_edits(a, b, most, in_a, in_b) -> number of pairs, or -1"},
    {"longest_paths", longest_paths, METH_VARARGS, "longest_paths(first, source, weight, time, choice) -> None"},
    {"trace_back", trace_back, METH_VARARGS, "trace_back(node, choice, source, path) -> number of edges"},
    {"paths_to", paths_to, METH_VARARGS, "paths_to(since, choice, source, time, path) -> None"},
    {"least_into_each", least_into_each, METH_VARARGS, "least_into_each(first, slack, chosen) -> number of edges"},
    {"next_marked", next_marked, METH_VARARGS, "next_marked(marked, following, nearest) -> None"},
    {"topological_order", topological_order, METH_VARARGS, "topological_order(first, target, ready, degree, queue) -> number of nodes"},
    {nullptr, nullptr, 0, nullptr},
};
PyModuleDef module = {PyModuleDef_HEAD_INIT, "_paths", "Longest paths, and edit scripts.", -1, functions, nullptr, nullptr, nullptr, nullptr};

}  // namespace

PyMODINIT_FUNC PyInit__paths() {
    PyObject* created = PyModule_Create(&module);
    if (created && PyModule_AddIntConstant(created, "NUMBER_BYTES", sizeof(Number)) < 0) Py_CLEAR(created);
    return created;
}
