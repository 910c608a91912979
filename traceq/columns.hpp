// Columns that Python functions hand to loops in C++: int64 where nothing else is said.

#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <cstdint>

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
