// Second reading: the grammar of one event, and where in it the values are that are kept.
#pragma once

#include "quotes.hpp"
#include "text.hpp"

namespace {

constexpr int kDeepest = 100;

enum Field : int {
    kPh, kName, kCat, kPid, kTid, kTs, kDur, kArgs,
    kExternalId, kExternalId2021, kCorrelation, kDevice, kStream, kBytes, kSize, kDirection, kGrid, kSequence,
    kForwardThread, kCallStack, kLabel, kMessageSequence, kDims2021, kWaitOnStream, kEventRecord,
    kCollective, kElementsIn, kElementsOut, kDtype, kGroup, kGroupSize, kRanks, kDims, kTypes,  // those of Messages
    kMemoryBytes, kAllocated, kReserved, kDeviceType, kDeviceId, kAddress,                      // those of Allocations
    kNumFields,
};
constexpr uint64_t bit(int field) { return uint64_t{1} << field; }
constexpr uint64_t kEventFields = bit(kArgs) - 1, kUninterpreted = bit(kDims) | bit(kDims2021) | bit(kTypes);

struct Key { Text text; Field field; };
constexpr Key kEventKeys[] = {
    {"ph", kPh}, {"ts", kTs}, {"cat", kCat}, {"pid", kPid}, {"tid", kTid}, {"dur", kDur}, {"name", kName}, {"args", kArgs},
};
constexpr Key kArgsKeys[] = {  // the fields of RawArgs
    {"External id", kExternalId}, {"external id", kExternalId2021}, {"correlation", kCorrelation}, {"device", kDevice},
    {"stream", kStream}, {"bytes", kBytes}, {"size", kSize}, {"direction", kDirection}, {"grid", kGrid},
    {"Sequence number", kSequence}, {"Fwd thread id", kForwardThread}, {"Call stack", kCallStack}, {"name", kLabel},
    {"Seq", kMessageSequence}, {"Input dims", kDims2021}, {"Collective name", kCollective},
    {"In msg nelems", kElementsIn}, {"Out msg nelems", kElementsOut}, {"dtype", kDtype}, {"Process Group Name", kGroup},
    {"Group size", kGroupSize}, {"Process Group Ranks", kRanks}, {"Input Dims", kDims}, {"Input type", kTypes},
    {"Bytes", kMemoryBytes}, {"Total Allocated", kAllocated}, {"Total Reserved", kReserved},
    {"Device Type", kDeviceType}, {"Device Id", kDeviceId}, {"Addr", kAddress},
    {"wait_on_stream", kWaitOnStream}, {"wait_on_cuda_event_record_corr_id", kEventRecord},
};
constexpr size_t kLongestKey = 33;

class KeyTable {  // keys by their length; the first and last eight bytes tell most of them apart
public:
    template <size_t N> explicit KeyTable(const Key (&keys)[N]) {
        for (const Key& key : keys) {
            char padded[kLongestKey + 8] = {};
            std::memcpy(padded, key.text.data(), key.text.size());
            Bucket& bucket = of_size_[key.text.size()];
            bucket.entries[bucket.count++] = {load8(padded), load8(padded + tail(key.text)), &key};
        }
    }
    TRACEQ_INLINE int find(Text text) const {  // -1 where it is none of them
        if (text.size() > kLongestKey || text.empty()) return -1;
        const uint64_t mask = text.size() < 8 ? (uint64_t{1} << 8 * text.size()) - 1 : ~uint64_t{0};
        const uint64_t first = load8(text.data()) & mask, last = load8(text.data() + tail(text)) & mask;
        const Bucket& bucket = of_size_[text.size()];
        for (int i = 0; i < bucket.count; ++i) {
            const Entry& entry = bucket.entries[i];
            if (entry.first == first && entry.last == last && (text.size() <= 16 || entry.key->text == text)) return entry.key->field;
        }
        return -1;
    }

private:
    struct Entry { uint64_t first, last; const Key* key; };
    struct Bucket { Entry entries[5]; int count; };
    static size_t tail(Text text) { return text.size() < 8 ? 0 : text.size() - 8; }
    Bucket of_size_[kLongestKey + 1] = {};
};
const KeyTable event_keys(kEventKeys), args_keys(kArgsKeys);

struct Event {
    Text value[kNumFields];  // as written, quotes included
    uint64_t present;
    bool odd;  // some of its strings are not plain ASCII
    bool has(Field field) const { return present & bit(field); }
    bool given(Field field) const { return has(field) && value[field][0] != 'n'; }
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

    TRACEQ_INLINE const char* number(const char* p) {
        const char* const begin = p;
        p += *p == '-';
        if (!is_digit(*p)) return fail(p);
        p = *p == '0' ? p + 1 : skip_digits(p);
        if (*p == '.') {
            if (!is_digit(*++p)) return fail(p);
            p = skip_digits(p);
        }
        if ((*p | 0x20) == 'e') {
            exotic = true;
            p += p[1] == '+' || p[1] == '-' ? 2 : 1;
            if (!is_digit(*p)) return fail(p);
            p = skip_digits(p);
        }
        exotic |= p - begin > 20;
        return p;
    }

    const char* word(const char* p, Text expected) {
        return Text(p, expected.size()) == expected ? p + expected.size() : fail(p);
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
            case 't': return word(p, "true");
            case 'f': return word(p, "false");
            case 'n': return word(p, "null");
            default: return number(p);
        }
    }

    const char* array(const char* p, int depth) {
        if (depth > kDeepest) return fail(p);
        p = skip_space(p + 1);
        if (*p == ']') return p + 1;
        while (true) {
            if (!(p = value(p, depth + 1))) return nullptr;
            p = skip_space(p);
            if (*p == ']') return p + 1;
            if (*p != ',') return fail(p);
            p = skip_space(p + 1);
        }
    }

    // `member(key, place of its value, depth)` parses each value.
    template <class Member> TRACEQ_INLINE const char* object(const char* p, int depth, Member member) {
        if (depth > kDeepest) return fail(p);
        p = skip_space(p + 1);
        if (*p == '}') return p + 1;
        while (true) {
            const char* const key = p + 1;
            if (*p != '"') return fail(p);
            if (!(p = string(p))) return nullptr;
            const Text name = between(key, p - 1);
            p = skip_space(p);
            if (*p != ':') return fail(p);
            if (!(p = member(name, skip_space(p + 1), depth + 1))) return nullptr;
            p = skip_space(p);
            if (*p == '}') return p + 1;
            if (*p != ',') return fail(p);
            p = skip_space(p + 1);
        }
    }

    TRACEQ_INLINE const char* value(const char* p, int depth) {  // as any; what is most frequent is here
        return *p == '"' ? string(p) : is_digit(*p) ? number(p) : any(p, depth);
    }

    TRACEQ_INLINE const char* known(Event& event, int field, const char* p, int depth) {
        if (field < 0) return value(p, depth);
        exotic = false;
        const char* const end = value(p, depth);
        if (!end) return nullptr;
        if (exotic && !(kUninterpreted & bit(field))) return fail(p);
        event.value[field] = between(p, end);
        event.present |= bit(field);
        return end;
    }

    const char* args(Event& event, const char* p, int depth) {
        event.present &= kEventFields;  // of two `args` the last one counts
        if (*p == 'n') return word(p, "null");
        if (*p != '{') return fail(p);
        const char* const end = object(p, depth, [this, &event](Text key, const char* at, int below) {
            return known(event, args_keys.find(key), at, below);
        });
        event.present |= bit(kArgs);
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
