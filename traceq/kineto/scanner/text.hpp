// Text, read eight bytes at a time. Up to kPadding bytes behind it may be read.
#pragma once

#include <cstdint>
#include <cstring>
#include <string_view>

#if defined(__SSE2__) && !defined(TRACEQ_PORTABLE)
#include <emmintrin.h>
#define TRACEQ_SSE2
#endif

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
inline bool is_blank(char c) { return static_cast<unsigned char>(c) <= ' '; }
inline bool is_digit(char c) { return static_cast<unsigned char>(c - '0') < 10; }
inline Text between(const char* begin, const char* end) { return {begin, size_t(end - begin)}; }

TRACEQ_INLINE const char* skip_space(const char* p) {
    if (!is_blank(*p)) return p;
    if (*p == ' ' && !is_blank(p[1])) return p + 1;
    while (is_space(*p)) {
        const uint64_t blanks = load8(++p) ^ 0x2020202020202020;  // indentation
        p += blanks ? lowest_bit(blanks) / 8 : 8;
    }
    return p;
}

constexpr uint64_t kEach = 0x0101010101010101, kHigh = 0x8080808080808080, kZeros = '0' * kEach;

TRACEQ_INLINE size_t num_digits(uint64_t word) {  // that eight bytes begin with, '0' taken off each
    const uint64_t other = (((word & ~kHigh) + 0x76 * kEach) | word) & kHigh;
    return other ? size_t(lowest_bit(other)) / 8 : 8;
}

TRACEQ_INLINE const char* skip_digits(const char* p) {
    size_t count;
    do p += count = num_digits(load8(p) ^ kZeros); while (count == 8);
    return p;
}

// To the first byte that a plain string does not hold: a quote, a backslash, a control character, one beyond ASCII.
TRACEQ_INLINE const char* skip_plain(const char* p) {
#if defined(TRACEQ_SSE2)
    for (;; p += 16) {
        const __m128i text = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
        const __m128i quote = _mm_cmpeq_epi8(text, _mm_set1_epi8('"')), escape = _mm_cmpeq_epi8(text, _mm_set1_epi8('\\'));
        const __m128i strange = _mm_cmplt_epi8(text, _mm_set1_epi8(' '));  // signed: what is beyond ASCII is below zero
        const int stops = _mm_movemask_epi8(_mm_or_si128(_mm_or_si128(quote, escape), strange));
        if (stops) return p + lowest_bit(uint64_t(stops));
    }
#else
    for (;; p += 8) {
        const uint64_t word = load8(p), quote = word ^ '"' * kEach, escape = word ^ '\\' * kEach;
        const uint64_t stops = (((quote - kEach) & ~quote) | ((escape - kEach) & ~escape) | ((word - 0x20 * kEach) & ~word) | word) & kHigh;
        if (stops) return p + lowest_bit(stops) / 8;  // a borrow may mark bytes behind the first one, never before it
    }
#endif
}

TRACEQ_INLINE uint64_t short_word(const char* p, size_t size) {  // fewer than eight bytes, as a number
    if (size >= 4) return load4(p) | load4(p + size - 4) << 32;
    const auto byte = [p](size_t i) { return uint64_t(static_cast<unsigned char>(p[i])); };
    return size ? byte(0) | byte(size / 2) << 8 | byte(size - 1) << 16 : 0;
}

TRACEQ_INLINE bool is_same(const char* a, const char* b, size_t size) {
    if (size < 8) return short_word(a, size) == short_word(b, size);
    for (size_t i = 0; i + 8 < size; i += 8)
        if (load8(a + i) != load8(b + i)) return false;
    return load8(a + size - 8) == load8(b + size - 8);
}

// Both may be read up to fifteen bytes beyond that size.
TRACEQ_INLINE bool is_same_padded(const char* a, const char* b, size_t size) {
#if defined(TRACEQ_SSE2)
    const auto load = [](const char* p) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)); };
    for (;; a += 16, b += 16, size -= 16) {
        const auto same = unsigned(_mm_movemask_epi8(_mm_cmpeq_epi8(load(a), load(b))));
        if (size <= 16) return !(~same & ((1u << size) - 1));
        if (same != 0xffff) return false;
    }
#else
    return is_same(a, b, size);
#endif
}

}  // namespace
