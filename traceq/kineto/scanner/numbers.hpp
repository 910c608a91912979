// Digits to int64.
#pragma once

#include <array>

#include "text.hpp"

namespace {

constexpr auto kPowers = [] {
    std::array<uint64_t, 20> powers{1};
    for (size_t i = 1; i < powers.size(); ++i) powers[i] = powers[i - 1] * 10;
    return powers;
}();

TRACEQ_INLINE uint64_t number_of(uint64_t word, size_t count) {  // up to eight digits, the first one lowest
    constexpr uint64_t even = 0x000000ff000000ff;
    if (count == 0) return 0;
    word <<= 64 - 8 * count;
    word = word * 10 + (word >> 8);
    return ((word & even) * 0x000f424000000064 + (word >> 16 & even) * 0x0000271000000001) >> 32;
}

struct Digits { uint64_t number; size_t count; };

TRACEQ_INLINE Digits read_digits(const char* p) {  // sixteen at most
    const uint64_t word = load8(p) ^ kZeros;
    const size_t count = num_digits(word);
    if (count < 8) return {number_of(word, count), count};
    const uint64_t more = load8(p + 8) ^ kZeros;
    const size_t num_more = num_digits(more);
    return {number_of(word, 8) * kPowers[num_more] + number_of(more, num_more), 8 + num_more};
}

// Decimal microseconds as nanoseconds, a digit past the third decimal rounding half up. nullptr for what is less plain.
TRACEQ_INLINE const char* read_time(const char* p, int64_t& out) {
    constexpr uint64_t most = 8000000000000000;
    const bool negative = *p == '-';
    p += negative;
    const Digits whole = read_digits(p);
    if (whole.count == 0 || (*p == '0' && whole.count > 1) || whole.number >= most) return nullptr;
    p += whole.count;
    uint64_t ns = whole.number * 1000;
    if (*p == '.') {
        const Digits part = read_digits(++p);
        if (part.count == 0 || whole.count + part.count > 19) return nullptr;
        p += part.count;
        if (part.count <= 3) {
            ns += part.number * kPowers[3 - part.count];
        } else {
            const uint64_t scale = kPowers[part.count - 3], rest = part.number % scale;
            ns += part.number / scale + (negative ? rest > scale / 2 : rest >= scale / 2);
        }
    }
    out = negative ? -int64_t(ns) : int64_t(ns);
    return *p <= ',' || *p == '}' ? p : nullptr;  // no further digit, point or exponent
}

// An integer, which past int64 wraps, or one of up to 16 digits written as text. nullptr for what is less plain.
TRACEQ_INLINE const char* read_integer(const char* p, int64_t& out) {
    const bool quoted = *p == '"', negative = p[quoted] == '-';
    p += quoted + negative;
    const Digits digits = read_digits(p);
    if (digits.count == 0 || (*p == '0' && digits.count > 1) || (quoted && negative)) return nullptr;
    p += digits.count;
    uint64_t number = digits.number;
    for (; digits.count == 16 && !quoted && is_digit(*p); ++p) {
        const auto digit = uint64_t(*p - '0');
        if (number > (UINT64_MAX - digit) / 10) return nullptr;
        number = number * 10 + digit;
    }
    out = int64_t(negative ? 0 - number : number);
    if (quoted) return *p == '"' ? p + 1 : nullptr;
    return *p <= ',' || *p == '}' ? p : nullptr;
}

}  // namespace
