// Eight bytes at a time, on every machine.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "numbers are read eight bytes at a time, in little-endian order; the Python reader serves this machine"
#endif
#if defined(__x86_64__) || defined(_M_X64)
#include <immintrin.h>
#define TRACEQ_SSE2 1
#elif defined(__aarch64__)
#include <arm_neon.h>
#define TRACEQ_NEON 1
#endif
#if defined(TRACEQ_SSE2) && defined(__GNUC__)
#define TRACEQ_AVX2 __attribute__((target("avx2,bmi,pclmul")))
#endif
#if defined(_MSC_VER)
#include <intrin.h>
#define TRACEQ_INLINE __forceinline
#else
#define TRACEQ_INLINE inline __attribute__((always_inline))
#endif

namespace {

inline uint32_t load4(const char* at) { uint32_t word; std::memcpy(&word, at, 4); return word; }
inline uint64_t load8(const char* at) { uint64_t word; std::memcpy(&word, at, 8); return word; }
constexpr uint64_t kZeros = 0x3030303030303030;
inline bool is_space(char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }
inline bool is_digit(char c) { return static_cast<unsigned char>(c - '0') < 10; }

inline int lowest_bit(uint64_t bits) {
#if defined(_MSC_VER)
    unsigned long index;
    _BitScanForward64(&index, bits);
    return static_cast<int>(index);
#else
    return __builtin_ctzll(bits);
#endif
}

inline int popcount(uint64_t bits) {
#if defined(_MSC_VER)
    return int(__popcnt64(bits));
#else
    return __builtin_popcountll(bits);
#endif
}

}  // namespace
