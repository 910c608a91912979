// Digits to int64.
#pragma once

#include "text.hpp"

namespace {

constexpr int64_t kLimitNs = 8000000000000000000;
constexpr uint64_t kPowers[] = {
    1, 10, 100, 1000, 10000, 100000, 1000000, 10000000, 100000000, 1000000000, 10000000000, 100000000000, 1000000000000,
    10000000000000, 100000000000000, 1000000000000000, 10000000000000000, 100000000000000000, 1000000000000000000,
};

inline uint64_t eight_digits(uint64_t word) {  // a digit a byte, the first one lowest
    word = word * 10 + (word >> 8);
    return ((word & 0x000000ff000000ff) * 0x000f424000000064 + (word >> 16 & 0x000000ff000000ff) * 0x0000271000000001) >> 32;
}

inline uint64_t number_of(const char* digits, size_t count) {  // at most 19 of them
    uint64_t number = 0;
    for (; count >= 8; count -= 8, digits += 8) number = number * 100000000 + eight_digits(load8(digits) ^ kZeros);
    return count ? number * kPowers[count] + eight_digits((load8(digits) ^ kZeros) << (64 - 8 * count)) : number;
}

// An integer, or one written as text; past int64 it wraps. False where it is neither.
inline bool read_integer(Text text, int64_t& out) {
    const bool quoted = text[0] == '"', negative = text[0] == '-';
    text = quoted ? text.substr(1, text.size() - 2) : text.substr(negative);
    if (text.empty() || text.size() > (quoted ? 18 : 20) || skip_digits(text.data()) != text.data() + text.size()) return false;
    uint64_t number = number_of(text.data(), text.size() < 19 ? text.size() : 19);
    if (text.size() == 20) {
        const auto digit = uint64_t(text[19] - '0');
        if (number > (UINT64_MAX - digit) / 10) return false;
        number = number * 10 + digit;
    }
    out = int64_t(negative ? 0 - number : number);
    return true;
}

enum class Reading { plain, absent, other };

// Decimal microseconds as nanoseconds; a digit past the third decimal rounds half up.
inline Reading read_time(Text text, int64_t& out) {
    if (text[0] == '"') return Reading::other;
    const bool negative = text[0] == '-';
    text.remove_prefix(negative);
    if (!is_digit(text[0])) return Reading::absent;
    const char *const end = text.data() + text.size(), *const point = skip_digits(text.data());
    const auto whole = size_t(point - text.data()), decimals = point < end ? size_t(end - point) - 1 : 0;
    if (whole + decimals > 19) return Reading::other;
    uint64_t number = number_of(text.data(), whole);
    if (point < end) {
        if (*point != '.' || skip_digits(point + 1) != end) return Reading::other;
        number = number * kPowers[decimals] + number_of(point + 1, decimals);
    }
    if (decimals <= 3) {
        const uint64_t scale = kPowers[3 - decimals];
        if (number > uint64_t(kLimitNs) / scale) return Reading::absent;
        out = negative ? -int64_t(number * scale) : int64_t(number * scale);
        return Reading::plain;
    }
    const uint64_t excess = kPowers[decimals - 3], rest = number % excess;
    const auto floor = int64_t(number / excess);
    out = negative ? -floor - (rest > excess / 2) : floor + (rest >= excess / 2);
    return Reading::plain;
}

}  // namespace
