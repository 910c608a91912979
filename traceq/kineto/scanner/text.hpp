// Text, read eight bytes at a time. Up to kPadding bytes behind it may be read.
#pragma once

#include <cstdint>
#include <cstring>
#include <string_view>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "numbers are read eight bytes at a time, in little-endian order; the Python reader serves this machine"
#endif
#define TRACEQ_INLINE inline __attribute__((always_inline))

namespace {

using Text = std::string_view;
constexpr size_t kPadding = 64;

inline uint64_t load4(const char* at) { uint32_t word; std::memcpy(&word, at, 4); return word; }
inline uint64_t load8(const char* at) { uint64_t word; std::memcpy(&word, at, 8); return word; }
inline int lowest_bit(uint64_t bits) { return __builtin_ctzll(bits); }
inline bool is_space(char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }
inline bool is_digit(char c) { return static_cast<unsigned char>(c - '0') < 10; }
inline Text between(const char* begin, const char* end) { return {begin, size_t(end - begin)}; }

TRACEQ_INLINE const char* skip_space(const char* p) {
    if (static_cast<unsigned char>(*p) > ' ') return p;
    if (*p == ' ' && static_cast<unsigned char>(p[1]) > ' ') return p + 1;
    while (is_space(*p)) {
        const uint64_t blanks = load8(++p) ^ 0x2020202020202020;  // indentation
        p += blanks ? lowest_bit(blanks) / 8 : 8;
    }
    return p;
}

constexpr uint64_t kZeros = 0x3030303030303030;

TRACEQ_INLINE const char* skip_digits(const char* p) {
    for (;; p += 8) {
        const uint64_t word = load8(p) ^ kZeros;
        const uint64_t other = (((word & 0x7f7f7f7f7f7f7f7f) + 0x7676767676767676) | word) & 0x8080808080808080;
        if (other) return p + lowest_bit(other) / 8;
    }
}

}  // namespace
