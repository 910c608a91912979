// The columns of Events, in the order of its fields.
#pragma once

#include <Python.h>

#include <cstdlib>
#include <new>
#include <utility>

#include "words.hpp"

namespace {

enum Column : int {
    cTs, cDur, cCategory, cName, cCat, cPid, cTid, cGrid, cDevice, cStream, cCorrelation, cExternalId, cBytes,
    cSequence, cForwardThread, kNumColumns,
};
constexpr size_t kWidths[kNumColumns] = {8, 8, 1, 4, 4, 4, 4, 4, 4, 4, 8, 8, 8, 8, 8};
constexpr size_t kSkew = 3 * 64;  // columns that start on pages would share the same few lines of the L1 cache

class Columns {
public:
    Columns() = default;
    Columns(const Columns&) = delete;
    ~Columns() { for (char* block : blocks_) std::free(block); }

    size_t size() const { return size_; }
    void reset() { size_ = capacity_ = 0; }
    void next_row() { if (++size_ > capacity_) reserve(2 * size_ + (64 << 10)); }
    template <class T> void set(Column column, T value) { reinterpret_cast<T*>(data(column))[size_ - 1] = value; }

    void extend(const Py_buffer* parts, size_t rows) {
        if (size_ + rows > capacity_) reserve(2 * (size_ + rows));
        for (int i = 0; i < kNumColumns; ++i)
            if (rows) std::memcpy(data(Column(i)) + size_ * kWidths[i], parts[i].buf, rows * kWidths[i]);
        size_ += rows;
    }

    char* take(int column) {  // a block whose values start at skew(column); the caller frees it
        char* const all = std::exchange(blocks_[column], nullptr);
        char* const fitted = static_cast<char*>(std::realloc(all, skew(column) + size_ * kWidths[column] + 1));
        return fitted ? fitted : all;
    }
    static size_t skew(int column) { return size_t(column) * kSkew; }

private:
    char* data(Column column) { return blocks_[column] + skew(column); }

    // Large blocks grow by remapping pages, not by copying them, and a page that was never written costs nothing.
    void reserve(size_t rows) {
        for (int i = 0; i < kNumColumns; ++i) {
            void* const block = std::realloc(blocks_[i], skew(i) + rows * kWidths[i]);
            if (!block) throw std::bad_alloc();
            blocks_[i] = static_cast<char*>(block);
        }
        capacity_ = rows;
    }

    char* blocks_[kNumColumns] = {};
    size_t size_ = 0, capacity_ = 0;
};

}  // namespace
