// Positions of instants among sorted intervals: one pass over both, where searches in columns take several.

#include "columns.hpp"

namespace {

// Position among ascending numbers, `stride` apart, that moves to the next instant from where it is.
class Cursor {
public:
    Cursor(const int64_t* starts, Py_ssize_t num, Py_ssize_t stride) : starts_(starts), num_(num), stride_(stride) {}

    // Returns how many starts are at or before the instant: near the last one by steps, further away by bisection.
    Py_ssize_t count_before(int64_t instant) {
        for (int step = 0; step < kNear; ++step) {
            if (count_ < num_ && at(count_) <= instant) ++count_;
            else if (count_ == 0 || at(count_ - 1) <= instant) return count_;
            else break;  // the instant is before the last one
        }
        return count_ = at_or_before(instant);
    }

private:
    static constexpr int kNear = 16;

    int64_t at(Py_ssize_t index) const { return starts_[index * stride_]; }

    Py_ssize_t at_or_before(int64_t instant) const {
        const bool is_later = count_ > 0 && at(count_ - 1) <= instant;
        Py_ssize_t low = is_later ? count_ : 0, high = is_later ? num_ : count_;
        if (is_later)  // most instants come in order: the next is not far
            for (Py_ssize_t far = kNear; low + far < num_; far *= 2) {
                if (at(low + far) > instant) {
                    high = low + far;
                    break;
                }
                low += far;
            }
        while (low < high) {
            const Py_ssize_t middle = low + (high - low) / 2;
            if (at(middle) <= instant) low = middle + 1;
            else high = middle;
        }
        return low;
    }

    const int64_t* starts_;
    Py_ssize_t num_, stride_, count_ = 0;
};

PyObject* count_before(PyObject*, PyObject* args) {
    PyObject* owners[3];
    if (!PyArg_ParseTuple(args, "OOO", &owners[0], &owners[1], &owners[2])) return nullptr;
    Columns<3> columns;
    if (!columns.hold(owners, 1)) return nullptr;
    if (columns.size(1) != columns.size(2)) return unequal_lengths();
    const int64_t* instants = columns[1];
    int64_t* count = columns[2];
    Py_BEGIN_ALLOW_THREADS
    Cursor cursor(columns[0], columns.size(0), 1);
    for (Py_ssize_t index = 0; index < columns.size(2); ++index) count[index] = cursor.count_before(instants[index]);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

// `parts` are pairs (start, end).
PyObject* span_index(PyObject*, PyObject* args) {
    PyObject* owners[3];
    if (!PyArg_ParseTuple(args, "OOO", &owners[0], &owners[1], &owners[2])) return nullptr;
    Columns<3> columns;
    if (!columns.hold(owners, 1)) return nullptr;
    if (columns.size(1) != columns.size(2)) return unequal_lengths();
    const int64_t *parts = columns[0], *instants = columns[1];
    int64_t* span = columns[2];
    Py_BEGIN_ALLOW_THREADS
    Cursor cursor(parts, columns.size(0) / 2, 2);
    for (Py_ssize_t index = 0; index < columns.size(2); ++index) {
        const Py_ssize_t last = cursor.count_before(instants[index]) - 1;
        span[index] = last >= 0 && instants[index] < parts[2 * last + 1] ? last : -1;
    }
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

// Walks from the last interval that began up to the first that is still open, at most `levels`: then -2.
PyObject* last_open(PyObject*, PyObject* args) {
    PyObject* owners[5];
    Py_ssize_t levels;
    if (!PyArg_ParseTuple(args, "OOOOnO", &owners[0], &owners[1], &owners[2], &owners[3], &levels, &owners[4])) return nullptr;
    Columns<5> columns;
    if (!columns.hold(owners, 1)) return nullptr;
    if (columns.size(1) != columns.size(0) || columns.size(2) != columns.size(0) || columns.size(3) != columns.size(4)) return unequal_lengths();
    const int64_t *end = columns[1], *parent = columns[2], *instants = columns[3];
    int64_t* innermost = columns[4];
    Py_BEGIN_ALLOW_THREADS
    Cursor cursor(columns[0], columns.size(0), 1);
    for (Py_ssize_t index = 0; index < columns.size(4); ++index) {
        int64_t interval = cursor.count_before(instants[index]) - 1;
        Py_ssize_t level = 0;
        while (interval >= 0 && end[interval] <= instants[index]) interval = level++ < levels || parent[interval] < 0 ? parent[interval] : -2;
        innermost[index] = interval;
    }
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

PyMethodDef functions[] = {
    {"count_before", count_before, METH_VARARGS, "count_before(starts, instants, count) -> None"},
    {"span_index", span_index, METH_VARARGS, "span_index(parts, instants, index) -> None"},
    {"last_open", last_open, METH_VARARGS, "last_open(start, end, parent, instants, levels, index) -> None"},
    {nullptr, nullptr, 0, nullptr},
};
PyModuleDef module = {PyModuleDef_HEAD_INIT, "_merges", "Positions of instants among sorted intervals.", -1, functions, nullptr, nullptr, nullptr, nullptr};

}  // namespace

PyMODINIT_FUNC PyInit__merges() { return PyModule_Create(&module); }
