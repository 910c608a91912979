// The grammar of one event, and where in it the values are that are kept.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "numbers.hpp"
#include "strings.hpp"

namespace {

constexpr int kDeepest = 100;

enum Field : int {
    kPh, kName, kCat, kPid, kTid, kTs, kDur, kArgs,
    kExternalId, kExternalId2021, kCorrelation, kDevice, kStream, kBytes, kSize, kSequence, kForwardThread,
    kMessageSequence, kWaitOnStream, kEventRecord, kGraph, kGraphNode,
    kDirection, kGrid, kCallStack, kCallFrom, kLabelModule, kLabel, kLabels, kLabel213, kLabelUnnamed, kDims2021, kStrides, kInputs,
    kCollective, kElementsIn, kElementsOut, kSplitsIn, kSplitsOut, kDtype, kGroup, kGroupSize, kRanks, kDims, kTypes,  // those of Messages
    kMemoryBytes, kAllocated, kReserved, kDeviceType, kDeviceId, kAddress,                      // those of Allocations
    kNumFields,
};
constexpr Text kKeys[kNumFields] = {
    "ph", "name", "cat", "pid", "tid", "ts", "dur", "args",
    "External id", "external id", "correlation", "device", "stream", "bytes", "size", "Sequence number", "Fwd thread id",
    "Seq", "wait_on_stream", "wait_on_cuda_event_record_corr_id", "graph id", "graph node id",
    "direction", "grid", "Call stack", "CallFrom", "module_fqn", "name", "labels", "str", "annotation", "Input dims", "Input Strides", "Concrete Inputs",
    "Collective name", "In msg nelems", "Out msg nelems", "In split size", "Out split size", "dtype", "Process Group Name", "Group size", "Process Group Ranks",
    "Input Dims", "Input type",
    "Bytes", "Total Allocated", "Total Reserved", "Device Type", "Device Id", "Addr",
};
constexpr uint64_t bit(int field) { return uint64_t{1} << field; }
constexpr uint64_t kEventFields = bit(kArgs) - 1, kUninterpreted = bit(kDims) | bit(kDims2021) | bit(kTypes) | bit(kStrides) | bit(kInputs);
constexpr uint64_t kTimes = bit(kTs) | bit(kDur);
constexpr uint64_t kIntegers = (bit(kDirection) - bit(kExternalId)) | (bit(kNumFields) - bit(kMemoryBytes));
constexpr int kFirstArgument = kArgs + 1, kMostFields = 64;

// The values that are kept: those of an event itself are always the same, those of its arguments a reader's choice.
struct Keys {
    const Text* names;
    int count;
    uint64_t numbers, uninterpreted;  // read at once, as times or integers; may hold numbers of any form
};
constexpr Keys kTraceKeys{kKeys, kNumFields, kTimes | kIntegers, kUninterpreted};

// What stands between two values of an object, from behind the one to the next: `, "tid": `. A trace repeats a few hundred
// of them in few orders; so each is parsed once, and from then on looked for where it is likely.
struct Gap {
    static constexpr int kIgnored = -1, kClose = -2;
    static constexpr size_t kLongest = 48, kMostFollowers = 8;

    char text[kLongest];
    size_t size = 0, num_followers = 0;
    int field = kIgnored;  // of the value behind it
    Gap* followers[kMostFollowers];

    TRACEQ_INLINE Gap* next(const char* p) const {  // nullptr where the one at p never followed this one
        for (size_t i = 0; i < num_followers; ++i) {
            Gap* const gap = followers[i];
            if (is_same_padded(gap->text, p, gap->size) && (!is_blank(p[gap->size]) || gap->field == kClose)) return gap;
        }
        return nullptr;
    }
};

class Gaps {  // of objects whose keys are those of some fields
public:
    Gaps(const Text* names, int first, int end) : names_(names), first_(first), end_(end) {}
    Gap opening;  // behind no value: the brace belongs to the gap after this one

    int find(Text key) const {
        const Text* const name = std::find(names_ + first_, names_ + end_, key);
        return name < names_ + end_ ? int(name - names_) : Gap::kIgnored;
    }

    Gap* note(Gap& before, Text text, int field, bool is_plain) {
        Gap* const end = gaps_ + count_;
        Gap* const gap = std::find_if(gaps_, end, [text](const Gap& each) { return Text(each.text, each.size) == text; });
        if (!is_plain || text.size() > Gap::kLongest || gap == gaps_ + kMost) {
            passing_.size = text.size(), passing_.field = field;
            return &passing_;
        }
        if (gap == end) {
            std::memcpy(gap->text, text.data(), text.size());
            gap->size = text.size(), gap->field = field;
            ++count_;
        }
        const size_t at = before.num_followers < Gap::kMostFollowers ? before.num_followers++ : turn_++ % Gap::kMostFollowers;
        return before.followers[at] = gap;
    }

private:
    static constexpr size_t kMost = 256;
    const Text* names_;
    int first_, end_;
    Gap gaps_[kMost], passing_;
    size_t count_ = 0, turn_ = 0;
};

struct Event {
    Text value[kMostFields];      // as written, quotes included
    int64_t number[kMostFields];  // in the place of those that were read at once
    uint64_t present, read;
    bool has(Field field) const { return present & bit(field); }
    bool was_read(Field field) const { return read & bit(field); }
    bool given(Field field) const { return was_read(field) || (has(field) && value[field][0] != 'n'); }
};

// Parses one event. Each method takes the place where something starts and gives the place behind it, or nullptr where
// it is no JSON or goes on past the text; `fault` is then the place of the trouble.
struct Parser {
    explicit Parser(const Keys& keys = kTraceKeys)
        : keys_(keys), event_gaps_{keys.names, kPh, kFirstArgument}, args_gaps_{keys.names, kFirstArgument, keys.count} {}

    Event event;
    std::vector<Text> odd;  // its strings that hold more than plain ASCII, quotes included: not checked any further
    std::vector<std::string> event_keys;  // of all events so far, in order of first sight
    const char* fault = nullptr;

    const char* parse(const char* p) {
        event.present = event.read = 0;
        odd.clear();
        return *p == '{' ? object(p, 0, event_gaps_) : fail(p);
    }

private:
    std::nullptr_t fail(const char* at) { fault = at; return nullptr; }

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
            exotic_ = true;
            p += p[1] == '+' || p[1] == '-' ? 2 : 1;
            if (!is_digit(*p)) return fail(p);
            p = skip_digits(p);
        }
        exotic_ |= p - begin > 20;
        return p;
    }

    const char* word(const char* p, Text expected) {
        return Text(p, expected.size()) == expected ? p + expected.size() : fail(p);
    }

    TRACEQ_INLINE const char* string(const char* p) {
        const char* const end = skip_plain(p + 1);
        return *end == '"' ? end + 1 : odd_string(p, end);
    }

    const char* odd_string(const char* begin, const char* p) {
        for (; *p != '"'; p = skip_plain(p + 1)) {
            p += *p == '\\';
            if (static_cast<unsigned char>(*p) < 0x20) return fail(p);  // the end of the text is a zero
        }
        odd.push_back(between(begin, p + 1));
        return p + 1;
    }

    TRACEQ_INLINE const char* value(const char* p, int depth) {  // as any; what is most frequent is here
        return *p == '"' ? string(p) : is_digit(*p) ? number(p) : any(p, depth);
    }

    const char* any(const char* p, int depth) {
        switch (*p) {
            case '"': return string(p);
            case '[': return array(p, depth);
            case '{': return object(p, depth, other_gaps_);
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
        for (;; p = skip_space(p + 1)) {
            if (!(p = value(p, depth + 1))) return nullptr;
            p = skip_space(p);
            if (*p == ']') return p + 1;
            if (*p != ',') return fail(p);
        }
    }

    TRACEQ_INLINE const char* repeated(const char* p, int depth) {  // as value; few arrays are new
        if (*p != '[') return value(p, depth);
        Value& last = arrays_.at(p);
        if (last.begins(p)) return p + last.size;
        const size_t num_odd = odd.size();
        const char* const end = array(p, depth);
        if (end && odd.size() == num_odd && !exotic_) last.learn(between(p, end));
        return end;
    }

    const char* object(const char* p, int depth, Gaps& gaps) {
        if (depth > kDeepest) return fail(p);
        for (Gap* gap = &gaps.opening;;) {
            Gap* next = gap->next(p);
            if (!next && !(next = parse_gap(gaps, *gap, p))) return nullptr;
            p += next->size;
            if (next->field == Gap::kClose) return p;
            if (!(p = member(next->field, p, depth + 1))) return nullptr;
            gap = next;
        }
    }

    Gap* parse_gap(Gaps& gaps, Gap& before, const char* const begin) {
        const bool opens = &before == &gaps.opening;
        const char* p = opens ? begin : skip_space(begin);
        const bool comma = *p == ',';
        if (opens || comma) p = skip_space(p + 1);
        if (*p == '}' && !comma) return gaps.note(before, between(begin, p + 1), Gap::kClose, true);
        const char* const key = p + 1;
        const size_t num_odd = odd.size();
        if (*p != '"' || (!opens && !comma)) return fail(p);
        if (!(p = string(p))) return nullptr;
        const Text name = between(key, p - 1);
        const bool is_plain = odd.size() == num_odd;
        if (!is_plain && name.find('\\') != Text::npos) return fail(p);
        if (&gaps == &event_gaps_ && std::find(event_keys.begin(), event_keys.end(), name) == event_keys.end())
            event_keys.emplace_back(name);
        if (*(p = skip_space(p)) != ':') return fail(p);
        p = skip_space(p + 1);
        return gaps.note(before, between(begin, p), gaps.find(name), is_plain);
    }

    TRACEQ_INLINE const char* member(int field, const char* p, int depth) {
        if (field < 0) return repeated(p, depth);
        if (field == kArgs) return args(p, depth);
        const uint64_t mine = bit(field);
        if (mine & keys_.numbers) {
            int64_t& number = event.number[field];
            if (const char* const end = mine & kTimes ? read_time(p, number) : read_integer(p, number)) {
                event.present |= mine, event.read |= mine;
                return end;
            }
        }
        exotic_ = false;
        const char* const end = repeated(p, depth);
        if (!end) return nullptr;
        if (exotic_ && !(keys_.uninterpreted & mine)) return fail(p);
        event.value[field] = between(p, end);
        event.present |= mine, event.read &= ~mine;  // of two of one key the last one counts
        return end;
    }

    const char* args(const char* p, int depth) {
        event.present &= kEventFields, event.read &= kEventFields;  // so do of two `args` those of the last one
        if (*p == 'n') return word(p, "null");
        if (*p != '{') return fail(p);
        const char* const end = object(p, depth, args_gaps_);
        event.present |= bit(kArgs);
        return end;
    }

    bool exotic_ = false;  // saw a number that is not plainly an int64 or a short decimal
    const Keys keys_;
    Gaps event_gaps_, args_gaps_, other_gaps_{nullptr, 0, 0};
    Values arrays_;
};

}  // namespace
