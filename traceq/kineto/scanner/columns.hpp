// The columns of Events, in the order of its fields.
#pragma once

#include <Python.h>

#include <cstdlib>
#include <new>
#if defined(__linux__)
#include <sys/mman.h>
#endif
#include <utility>

#include "words.hpp"

namespace {

enum Column : int {
    cTs, cDur, cCategory, cName, cCat, cPid, cTid, cGrid, cShapes, cDevice, cStream, cCorrelation, cExternalId, cBytes,
    cSequence, cForwardThread, kNumColumns,
};
constexpr size_t kWidths[kNumColumns] = {8, 8, 1, 4, 4, 4, 4, 4, 4, 4, 4, 8, 8, 8, 8, 8};
constexpr size_t kSkew = 3 * 64;  // columns that start on pages would share the same few lines of the L1 cache

#if defined(__linux__)
// A block grows by remapping its pages, never by copying them, and a page that was never written costs nothing.
char* resize(char* block, size_t from, size_t to) {  // to no bytes: frees it
    if (block && !to) return munmap(block, from), nullptr;
    void* const found = block ? mremap(block, from, to, MREMAP_MAYMOVE)
                              : mmap(nullptr, to, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return found == MAP_FAILED ? nullptr : static_cast<char*>(found);
}
#else
char* resize(char* block, size_t, size_t to) {
    if (to) return static_cast<char*>(std::realloc(block, to));
    std::free(block);
    return nullptr;
}
#endif

struct Block { char* at; size_t size; };

class Columns {
public:
    Columns() = default;
    Columns(const Columns&) = delete;
    ~Columns() { for (int i = 0; i < kNumColumns; ++i) if (blocks_[i]) resize(blocks_[i], bytes(i, capacity_), 0); }

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

    // A column without the room to grow, its values from skew(column) on, which the caller frees; once all are taken, reset.
    Block take(int column) {
        char* const all = std::exchange(blocks_[column], nullptr);
        const size_t size = bytes(column, size_), room = bytes(column, capacity_);
        char* const fitted = all ? resize(all, room, size) : nullptr;
        return fitted ? Block{fitted, size} : Block{all, room};
    }
    static size_t skew(int column) { return size_t(column) * kSkew; }

private:
    char* data(Column column) { return blocks_[column] + skew(column); }

    static size_t bytes(int column, size_t rows) { return skew(column) + rows * kWidths[column] + 1; }

    void reserve(size_t rows) {
        for (int i = 0; i < kNumColumns; ++i) {
            char* const block = resize(blocks_[i], bytes(i, capacity_), bytes(i, rows));
            if (!block) throw std::bad_alloc();
            blocks_[i] = block;
        }
        capacity_ = rows;
    }

    char* blocks_[kNumColumns] = {};
    size_t size_ = 0, capacity_ = 0;
};

}  // namespace
