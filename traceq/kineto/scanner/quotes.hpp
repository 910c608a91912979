// First reading: where strings begin and end, found 64 bytes at a time.
#pragma once

#include <vector>

#include "text.hpp"

#if defined(__x86_64__)
#include <immintrin.h>
#define TRACEQ_AVX2 __attribute__((target("avx2,bmi,pclmul")))
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace {

constexpr uint32_t kNoToken = UINT32_MAX;

struct Marks { uint64_t quotes, escapes, controls, foreign; };  // a bit per byte of a block; foreign = not ASCII

#if defined(__x86_64__)
inline Marks marks_baseline(const char* block) {
    Marks marks{};
    for (int i = 0; i < 4; ++i) {
        const __m128i text = _mm_loadu_si128(reinterpret_cast<const __m128i*>(block + 16 * i));
        const auto bits = [i](__m128i hits) { return uint64_t(uint32_t(_mm_movemask_epi8(hits))) << (16 * i); };
        const __m128i last_control = _mm_set1_epi8(0x1f);
        marks.quotes |= bits(_mm_cmpeq_epi8(text, _mm_set1_epi8('"')));
        marks.escapes |= bits(_mm_cmpeq_epi8(text, _mm_set1_epi8('\\')));
        marks.controls |= bits(_mm_cmpeq_epi8(_mm_max_epu8(text, last_control), last_control));
        marks.foreign |= bits(text);
    }
    return marks;
}
#elif defined(__aarch64__)
inline uint64_t bits_of(uint8x16_t a, uint8x16_t b, uint8x16_t c, uint8x16_t d) {
    const uint8x16_t weights = {1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128};
    const uint8x16_t ab = vpaddq_u8(vandq_u8(a, weights), vandq_u8(b, weights));
    const uint8x16_t cd = vpaddq_u8(vandq_u8(c, weights), vandq_u8(d, weights));
    const uint8x16_t sums = vpaddq_u8(ab, cd);
    return vgetq_lane_u64(vreinterpretq_u64_u8(vpaddq_u8(sums, sums)), 0);
}
inline Marks marks_baseline(const char* block) {
    const auto* at = reinterpret_cast<const uint8_t*>(block);
    const uint8x16_t t[4] = {vld1q_u8(at), vld1q_u8(at + 16), vld1q_u8(at + 32), vld1q_u8(at + 48)};
    const auto where = [&t](auto hit) { return bits_of(hit(t[0]), hit(t[1]), hit(t[2]), hit(t[3])); };
    return {where([](uint8x16_t x) { return vceqq_u8(x, vdupq_n_u8('"')); }),
            where([](uint8x16_t x) { return vceqq_u8(x, vdupq_n_u8('\\')); }),
            where([](uint8x16_t x) { return vcleq_u8(x, vdupq_n_u8(0x1f)); }),
            where([](uint8x16_t x) { return vcgeq_u8(x, vdupq_n_u8(0x80)); })};
}
#else
inline Marks marks_baseline(const char* block) {
    Marks marks{};
    for (int i = 0; i < 64; ++i) {
        const auto byte = static_cast<unsigned char>(block[i]);
        marks.quotes |= uint64_t(byte == '"') << i;
        marks.escapes |= uint64_t(byte == '\\') << i;
        marks.controls |= uint64_t(byte < 0x20) << i;
        marks.foreign |= uint64_t(byte >= 0x80) << i;
    }
    return marks;
}
#endif

inline uint64_t prefix_xor(uint64_t bits) {  // of quotes: a bit for each byte inside a string
    for (int shift = 1; shift < 64; shift *= 2) bits ^= bits << shift;
    return bits;
}

struct Index {
    std::vector<uint32_t> quotes;  // of strings, opening and closing in turn; two of kNoToken end the list
    std::vector<uint32_t> odd;     // blocks with an escape, a control character inside a string, or non-ASCII text
    size_t count = 0;
    bool escaped = false;          // the first byte of the next block follows a backslash
    uint64_t inside = 0;           // all ones where the next block starts inside a string

    void clear() { odd.clear(); count = 0; escaped = false; inside = 0; }

    uint64_t escaped_by(uint64_t backslashes) {  // bits of bytes that a backslash makes literal
        uint64_t found = 0;
        bool literal = escaped;
        for (int i = 0; i < 64; ++i) {
            found |= uint64_t(literal) << i;
            literal = !literal && (backslashes >> i & 1);
        }
        escaped = literal;
        return found;
    }

    template <class PrefixXor> TRACEQ_INLINE void add_block(const Marks& marks, uint32_t at, PrefixXor prefix_xor) {
        uint64_t quotes_here = marks.quotes;
        if (marks.escapes || escaped) quotes_here &= ~escaped_by(marks.escapes);
        const uint64_t strings = prefix_xor(quotes_here) ^ inside;
        inside = uint64_t(int64_t(strings) >> 63);
        if (marks.escapes | marks.foreign | (marks.controls & strings)) odd.push_back(at);
        uint32_t* out = quotes.data() + count;
        count += size_t(__builtin_popcountll(quotes_here));
        while (quotes_here)  // in eights: more may be written than there are, which costs less than to guess the end
            for (int i = 0; i < 8; ++i, quotes_here &= quotes_here - 1)
                *out++ = at + uint32_t(lowest_bit(quotes_here | uint64_t{1} << 63));
    }
};

// Whoever indexes base[from:to] has made room for a quote a byte, and 64 more.
using Indexer = void (*)(Index&, const char* base, size_t from, size_t to);

void index_baseline(Index& index, const char* base, size_t from, size_t to) {
    for (; from < to; from += 64) index.add_block(marks_baseline(base + from), uint32_t(from), prefix_xor);
}

#if defined(TRACEQ_AVX2)
TRACEQ_AVX2 inline Marks marks_avx2(const char* block) {
    const __m256i low = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(block));
    const __m256i high = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(block + 32));
    const __m256i quote = _mm256_set1_epi8('"'), escape = _mm256_set1_epi8('\\'), control = _mm256_set1_epi8(0x1f);
    const auto bits = [](__m256i a, __m256i b) TRACEQ_AVX2 {
        return uint64_t(uint32_t(_mm256_movemask_epi8(a))) | uint64_t(uint32_t(_mm256_movemask_epi8(b))) << 32;
    };
    return {bits(_mm256_cmpeq_epi8(low, quote), _mm256_cmpeq_epi8(high, quote)),
            bits(_mm256_cmpeq_epi8(low, escape), _mm256_cmpeq_epi8(high, escape)),
            bits(_mm256_cmpeq_epi8(_mm256_max_epu8(low, control), control),
                 _mm256_cmpeq_epi8(_mm256_max_epu8(high, control), control)),
            bits(low, high)};
}
TRACEQ_AVX2 inline uint64_t prefix_xor_clmul(uint64_t bits) {
    const __m128i ones = _mm_set1_epi8(char(0xff));
    return uint64_t(_mm_cvtsi128_si64(_mm_clmulepi64_si128(_mm_cvtsi64_si128(int64_t(bits)), ones, 0)));
}
TRACEQ_AVX2 void index_avx2(Index& index, const char* base, size_t from, size_t to) {
    for (; from < to; from += 64) index.add_block(marks_avx2(base + from), uint32_t(from), prefix_xor_clmul);
}
#endif

Indexer best_indexer() {
#if defined(TRACEQ_AVX2)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi") && __builtin_cpu_supports("pclmul")) return index_avx2;
#endif
    return index_baseline;
}

}  // namespace
