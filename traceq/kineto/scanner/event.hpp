// Second reading: the grammar of one event, and where in it the values are that are kept.
#pragma once

#include "quotes.hpp"

namespace {

constexpr int kDeepest = 100;

enum Field : int {
    kPh, kName, kCat, kPid, kTid, kTs, kDur, kArgs,
    kExternalId, kExternalId2021, kCorrelation, kDevice, kStream, kBytes, kSize, kDirection, kGrid, kSequence,
    kForwardThread, kCallStack, kCollective, kElementsIn, kElementsOut, kDtype, kGroup, kGroupSize, kRanks,
    kMessageSequence, kDims, kDims2021, kTypes, kLabel, kMemoryBytes, kAllocated, kReserved, kDeviceType, kDeviceId, kAddress,
    kNumFields,
};
constexpr uint64_t kEventFields = (uint64_t{1} << (kArgs + 1)) - 1;

struct Key { const char* text; size_t size; Field field; };
constexpr Key kEventKeys[] = {
    {"ph", 2, kPh}, {"ts", 2, kTs}, {"cat", 3, kCat}, {"pid", 3, kPid}, {"tid", 3, kTid}, {"dur", 3, kDur},
    {"name", 4, kName}, {"args", 4, kArgs},
};
constexpr Key kArgsKeys[] = {  // the fields of RawArgs
    {"Seq", 3, kMessageSequence}, {"size", 4, kSize}, {"grid", 4, kGrid}, {"name", 4, kLabel}, {"bytes", 5, kBytes},
    {"dtype", 5, kDtype}, {"device", 6, kDevice}, {"stream", 6, kStream}, {"direction", 9, kDirection},
    {"Call stack", 10, kCallStack}, {"Group size", 10, kGroupSize}, {"Input Dims", 10, kDims},
    {"Input dims", 10, kDims2021}, {"Input type", 10, kTypes}, {"External id", 11, kExternalId}, {"external id", 11, kExternalId2021},
    {"correlation", 11, kCorrelation}, {"Fwd thread id", 13, kForwardThread}, {"In msg nelems", 13, kElementsIn},
    {"Out msg nelems", 14, kElementsOut}, {"Sequence number", 15, kSequence}, {"Collective name", 15, kCollective},
    {"Process Group Name", 18, kGroup}, {"Process Group Ranks", 19, kRanks}, {"Addr", 4, kAddress},
    {"Bytes", 5, kMemoryBytes}, {"Device Id", 9, kDeviceId}, {"Device Type", 11, kDeviceType},
    {"Total Reserved", 14, kReserved}, {"Total Allocated", 15, kAllocated},
};
constexpr size_t kLongestKey = 19;


struct Text {
    const char* at;
    size_t size;
    bool operator==(const char* other) const { return size == std::strlen(other) && !std::memcmp(at, other, size); }
    bool starts_with(const char* other) const {
        return size >= std::strlen(other) && !std::memcmp(at, other, std::strlen(other));
    }
};

class KeyTable {  // keys by their length; the first and last eight bytes tell most of them apart
public:
    template <size_t N> explicit KeyTable(const Key (&keys)[N]) {
        for (const Key& key : keys) {
            char padded[kLongestKey + 8] = {};
            std::memcpy(padded, key.text, key.size);
            Bucket& bucket = of_size_[key.size];
            bucket.entries[bucket.count++] = {load8(padded), load8(padded + tail(key.size)), &key};
        }
    }
    TRACEQ_INLINE int find(Text text) const {
        if (text.size > kLongestKey || text.size == 0) return -1;
        const uint64_t mask = text.size < 8 ? (uint64_t{1} << 8 * text.size) - 1 : ~uint64_t{0};
        const uint64_t first = load8(text.at) & mask, last = load8(text.at + tail(text.size)) & mask;
        const Bucket& bucket = of_size_[text.size];
        for (int i = 0; i < bucket.count; ++i) {
            const Entry& entry = bucket.entries[i];
            if (entry.first != first || entry.last != last) continue;
            if (text.size <= 16 || !std::memcmp(entry.key->text, text.at, text.size)) return entry.key->field;
        }
        return -1;
    }

private:
    struct Entry { uint64_t first, last; const Key* key; };
    struct Bucket { Entry entries[5]; int count; };
    static size_t tail(size_t size) { return size < 8 ? 0 : size - 8; }
    Bucket of_size_[kLongestKey + 1] = {};
};
const KeyTable event_keys(kEventKeys), args_keys(kArgsKeys);

struct Value {
    const char *begin, *end;
    bool is_text() const { return *begin == '"'; }
    bool is_null() const { return *begin == 'n'; }
    Text inner() const { return {begin + 1, size_t(end - begin) - 2}; }
    Text all() const { return {begin, size_t(end - begin)}; }
};

struct Event {
    Value value[kNumFields];
    uint64_t present;
    bool odd;  // some of its strings are not plain ASCII
    bool has(Field field) const { return present >> field & 1; }
    bool given(Field field) const { return has(field) && !value[field].is_null(); }
};

// Parses one event. Each method takes the place where something starts and gives the place behind it, or nullptr where
// it is no JSON or goes on past the text; `fault` is then the place of the trouble.
struct Parser {
    const char* base;
    const char* limit;      // end of the text; zeros follow
    const uint32_t* quote;  // the next quote, as an offset from base
    const char* fault = nullptr;
    bool exotic = false;    // saw a number that is not plainly an int64 or a short decimal

    const char* fail(const char* at) { fault = at; return nullptr; }

    TRACEQ_INLINE static const char* space(const char* p) {
        if (static_cast<unsigned char>(*p) > ' ') return p;
        if (*p == ' ' && static_cast<unsigned char>(p[1]) > ' ') return p + 1;
        while (is_space(*p)) {
            const uint64_t blanks = load8(++p) ^ 0x2020202020202020;  // indentation
            p += blanks ? lowest_bit(blanks) / 8 : 8;
        }
        return p;
    }

    TRACEQ_INLINE static const char* digits(const char* p) {
        for (;; p += 8) {
            const uint64_t word = load8(p) ^ kZeros;
            const uint64_t other = (((word & 0x7f7f7f7f7f7f7f7f) + 0x7676767676767676) | word) & 0x8080808080808080;
            if (other) return p + lowest_bit(other) / 8;
        }
    }

    TRACEQ_INLINE const char* number(const char* p) {
        const char* const begin = p;
        p += *p == '-';
        if (!is_digit(*p)) return fail(p);
        p = *p == '0' ? p + 1 : digits(p);
        if (*p == '.') {
            if (!is_digit(*++p)) return fail(p);
            p = digits(p);
        }
        if ((*p | 0x20) == 'e') {
            exotic = true;
            p += p[1] == '+' || p[1] == '-' ? 2 : 1;
            if (!is_digit(*p)) return fail(p);
            p = digits(p);
        }
        exotic |= p - begin > 20;
        return p;
    }

    const char* word(const char* p, Text expected) {
        return std::memcmp(p, expected.at, expected.size) ? fail(p) : p + expected.size;
    }

    TRACEQ_INLINE const char* string(const char* p) {
        if (quote[1] == kNoToken) return fail(limit);
        if (base + quote[0] != p) return fail(p);
        quote += 2;
        return base + quote[-1] + 1;
    }

    const char* any(const char* p, int depth) {
        switch (*p) {
            case '"': return string(p);
            case '[': return array(p, depth);
            case '{': return object(p, depth, [this](Text, const char* at, int below) { return value(at, below); });
            case 't': return word(p, {"true", 4});
            case 'f': return word(p, {"false", 5});
            case 'n': return word(p, {"null", 4});
            default: return number(p);
        }
    }

    const char* array(const char* p, int depth) {
        if (depth > kDeepest) return fail(p);
        p = space(p + 1);
        if (*p == ']') return p + 1;
        while (true) {
            if (!(p = value(p, depth + 1))) return nullptr;
            p = space(p);
            if (*p == ']') return p + 1;
            if (*p != ',') return fail(p);
            p = space(p + 1);
        }
    }

    // `member(key, place of its value, depth)` parses each value.
    template <class Member> TRACEQ_INLINE const char* object(const char* p, int depth, Member member) {
        if (depth > kDeepest) return fail(p);
        p = space(p + 1);
        if (*p == '}') return p + 1;
        while (true) {
            const char* const key = p + 1;
            if (*p != '"') return fail(p);
            if (!(p = string(p))) return nullptr;
            const Text name{key, size_t(p - key) - 1};
            p = space(p);
            if (*p != ':') return fail(p);
            if (!(p = member(name, space(p + 1), depth + 1))) return nullptr;
            p = space(p);
            if (*p == '}') return p + 1;
            if (*p != ',') return fail(p);
            p = space(p + 1);
        }
    }

    TRACEQ_INLINE const char* value(const char* p, int depth) {  // as any; what is most frequent is here
        return *p == '"' ? string(p) : is_digit(*p) ? number(p) : any(p, depth);
    }

    TRACEQ_INLINE const char* known(Event& event, int field, const char* p, int depth) {
        if (field < 0) return value(p, depth);
        exotic = false;
        const char* const end = value(p, depth);
        if (end && exotic && field != kDims && field != kDims2021 && field != kTypes) return fail(p);
        event.value[field] = {p, end};
        event.present |= uint64_t{1} << field;
        return end;
    }

    const char* args(Event& event, const char* p, int depth) {
        event.present &= kEventFields & ~(uint64_t{1} << kArgs);  // of two `args` the last one counts
        if (*p == 'n') return word(p, {"null", 4});
        if (*p != '{') return fail(p);
        const char* const end = object(p, depth, [this, &event](Text key, const char* at, int below) {
            return known(event, args_keys.find(key), at, below);
        });
        event.value[kArgs] = {p, end};
        event.present |= uint64_t{1} << kArgs;
        return end;
    }

    const char* event(Event& event, const char* p) {
        event.present = 0;
        if (*p != '{') return fail(p);
        return object(p, 0, [this, &event](Text key, const char* at, int depth) {
            const int field = event_keys.find(key);
            return field == kArgs ? args(event, at, depth) : known(event, field, at, depth);
        });
    }
};

}  // namespace
