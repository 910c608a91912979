// Events to rows.
#pragma once

#include <Python.h>

#include <array>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "columns.hpp"
#include "event.hpp"
#include "quotes.hpp"
#include "strings.hpp"

namespace {

// Values of traceq.model.Category that decide which arguments a row has.
enum Category : int8_t { kCpuOp = 1, kAnnotation = 2, kRuntime = 4, kKernel = 5, kMemcpy = 6, kMemset = 7, kSync = 8 };

constexpr int64_t kLimitNs = 8000000000000000000, kLongestNs = 1000000000000000000;
constexpr size_t kPadding = 64, kStretch = 128 << 10;

struct Rare { int64_t row; std::string name, body; };  // for Python: a thread's name (row -1), or a collective's arguments

using Allocation = std::array<int64_t, 9>;  // the columns of Allocations

enum Verdict : int { kMore, kClosed, kHandOver };
enum class Reading { plain, absent, other };

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

Reading read_integer(const Value& value, int64_t& out) {
    const bool negative = *value.begin == '-';
    const char* const first = value.begin + negative;
    const auto count = size_t(value.end - first);
    if (!is_digit(*first) || Parser::digits(first) != value.end || count > 20) return Reading::other;
    uint64_t number = number_of(first, count < 19 ? count : 19);
    if (count == 20) {
        const auto digit = uint64_t(first[19] - '0');
        if (number > (UINT64_MAX - digit) / 10) return Reading::other;
        number = number * 10 + digit;
    }
    out = int64_t(negative ? 0 - number : number);  // past int64 it wraps
    return Reading::plain;
}

Reading read_digits(Text text, int64_t& out) {
    if (text.size < 1 || text.size > 18) return Reading::other;
    out = 0;
    for (size_t i = 0; i < text.size; ++i) {
        if (!is_digit(text.at[i])) return Reading::other;
        out = out * 10 + (text.at[i] - '0');
    }
    return Reading::plain;
}

// Decimal microseconds as nanoseconds, a digit past the third decimal rounds half up.
Reading read_time(const Value& value, int64_t& out) {
    if (*value.begin == '"') return Reading::other;
    const bool negative = *value.begin == '-';
    const char* const first = value.begin + negative;
    if (!is_digit(*first)) return Reading::absent;
    const char* const point = Parser::digits(first);
    const bool is_decimal = point < value.end;
    const auto whole = size_t(point - first), decimals = is_decimal ? size_t(value.end - point) - 1 : 0;
    if (whole + decimals > 19) return Reading::other;
    uint64_t number = number_of(first, whole);
    if (is_decimal) {
        if (*point != '.' || Parser::digits(point + 1) != value.end) return Reading::other;
        number = number * kPowers[decimals] + number_of(point + 1, decimals);
    }
    if (decimals <= 3) {
        const uint64_t scale = kPowers[3 - decimals];
        if (number > uint64_t(kLimitNs) / scale) return Reading::absent;
        out = int64_t(number * scale);
        if (negative) out = -out;
        return Reading::plain;
    }
    const uint64_t excess = kPowers[decimals - 3], rest = number % excess;
    const auto floor = int64_t(number / excess);
    out = negative ? -floor - (rest > excess / 2) : floor + (rest >= excess / 2);
    return Reading::plain;
}

class Scanner {
public:
    explicit Scanner(PyObject* categorise) : categorise_(categorise) {}
    PyObject* categorise() const { return categorise_; }

    Columns columns;
    Strings strings;
    std::vector<Rare> rare;
    std::vector<std::pair<int64_t, int32_t>> stacks;
    std::vector<Allocation> allocations;
    std::vector<std::string> by_name;  // categories that take the event's name to tell
    int64_t num_dropped = 0;
    size_t position = 0;  // everything before it is in the columns
    bool comma_due = false;  // an event stands right before the position
    bool busy = false;

    // Reads base[from:to], which kPadding writable bytes follow.
    Verdict scan(char* base, size_t from, size_t to, bool after_event) {
        std::memset(base + to, 0, kPadding);
        index_.clear();
        token_ = odd_ = 0;
        position = from;
        comma_due = after_event;
        for (size_t indexed = from;;) {
            drop_used_quotes();
            const size_t pending = indexed > position ? indexed - position : 0;
            const size_t enough = indexed + pending + 1;  // a long event is not parsed again for each stretch
            while (indexed < to && indexed < enough) indexed = index_stretch(base, indexed, to);
            const Verdict verdict = walk(base, base + to);
            if (verdict != kMore || indexed >= to) return verdict;
        }
    }

private:
    void drop_used_quotes() {
        index_.count -= token_;
        if (token_) std::memmove(index_.quotes.data(), index_.quotes.data() + token_, index_.count * sizeof(uint32_t));
        token_ = 0;
    }

    size_t index_stretch(const char* base, size_t from, size_t to) {
        const size_t end = from + (to - from < kStretch ? (to - from + 63) / 64 * 64 : kStretch);
        if (index_.quotes.size() < index_.count + kStretch + 64) index_.quotes.resize(2 * index_.count + kStretch + 64);
        indexer_(index_, base, from, end);
        index_.quotes[index_.count] = index_.quotes[index_.count + 1] = kNoToken;
        return end;
    }

    Verdict walk(const char* base, const char* limit) {
        Parser parser{base, limit, nullptr};
        const auto stop = [limit](const char* at) { return at + 16 >= limit ? kMore : kHandOver; };
        while (true) {
            const char* start = Parser::space(base + position);
            if (*start == ']') { position = size_t(start - base); return kClosed; }
            if (comma_due) {
                if (*start != ',') return stop(start);
                start = Parser::space(start + 1);
            }
            if (*start != '{') return stop(start);
            position = size_t(start - base);
            comma_due = false;
            const uint32_t* const first = index_.quotes.data() + token_;
            parser.quote = first;
            const char* const end = parser.event(event_, start);
            if (!end) return stop(parser.fault);
            event_.odd = is_odd(size_t(start - base), size_t(end - base));
            if (event_.odd && !is_sound_throughout(base, first, parser.quote)) return kHandOver;
            if (!emit({start, end})) return kHandOver;
            token_ = size_t(parser.quote - index_.quotes.data());
            position = size_t(end - base);
            comma_due = true;
        }
    }

    bool is_odd(size_t start, size_t end) {
        while (odd_ < index_.odd.size() && index_.odd[odd_] + 64 <= start) ++odd_;
        return odd_ < index_.odd.size() && index_.odd[odd_] < end;
    }

    bool is_sound_throughout(const char* base, const uint32_t* quote, const uint32_t* end) const {
        for (; quote < end; quote += 2) {
            const Text text{base + quote[0] + 1, quote[1] - quote[0] - 1};
            if (!is_sound(text)) return false;
            const bool is_key = *Parser::space(base + quote[1] + 1) == ':';
            if (is_key && std::memchr(text.at, '\\', text.size)) return false;
        }
        return true;
    }

    // ---- one event: false where the reference must read it

    bool emit(const Value& whole) {
        if (!event_.has(kPh)) return true;
        const Value& ph = event_.value[kPh];
        if (event_.odd && std::memchr(ph.begin, '\\', ph.all().size)) return false;
        if (ph.all() == "\"M\"") return emit_metadata(whole);
        if (ph.all() == "\"i\"") return emit_instant();
        return ph.all() == "\"X\"" ? emit_complete() : true;
    }

    bool emit_metadata(const Value& whole) {
        Text name;
        if (!text_of(kName, name, name_)) return false;
        if (name == "thread_name") rare.push_back({-1, {}, std::string(whole.begin, whole.end)});
        return true;
    }

    bool emit_instant() {
        Text name, pid, tid;
        if (!text_of(kName, name, name_)) return false;
        if (!(name == "[memory]")) return true;
        int64_t ts = 0;
        const Reading has_ts = time(kTs, ts);
        if (has_ts != Reading::plain) return has_ts == Reading::absent ? (++num_dropped, true) : false;
        if (!text_of(kPid, pid, pid_) || !text_of(kTid, tid, tid_)) return false;
        Allocation found = {ts, 0, 0, -1, -1, -1, -1, -1, -1};
        size_t at = 3;
        for (const Field field : {kMemoryBytes, kAllocated, kReserved, kDeviceType, kDeviceId, kAddress})
            if (!integer(field, found[at++])) return false;
        found[1] = strings.intern(pid);
        found[2] = strings.intern(tid);
        allocations.push_back(found);
        return true;
    }

    bool emit_complete() {
        int64_t ts = 0, dur = 0;
        const Reading has_ts = time(kTs, ts), has_dur = time(kDur, dur);
        if (has_ts == Reading::other || has_dur == Reading::other) return false;
        if (has_ts == Reading::absent || has_dur == Reading::absent || dur < 0 || dur > kLongestNs) {
            ++num_dropped;
            return true;
        }
        Text name, cat, pid, tid;
        if (!text_of(kName, name, name_) || !text_of(kCat, cat, cat_) || !text_of(kPid, pid, pid_)) return false;
        if (!text_of(kTid, tid, tid_)) return false;
        const int32_t cat_id = strings.intern(cat);
        const int category = category_of(cat_id, name);
        if (category < 0) return false;
        Arguments args;
        if (!read_arguments(category, args)) return false;
        const Text raw_name = name;
        if (!rename_copy(name)) return false;
        note_message(category, raw_name);
        columns.next_row();
        columns.set(cTs, ts);
        columns.set(cDur, dur);
        columns.set(cCategory, int8_t(category));
        columns.set(cName, strings.intern(name));
        columns.set(cCat, cat_id);
        columns.set(cPid, strings.intern(pid));
        columns.set(cTid, strings.intern(tid));
        columns.set(cGrid, args.has_grid ? strings.intern({grid_.data(), grid_.size()}) : -1);
        const Field shapes = event_.given(kDims) ? kDims : kDims2021;
        const bool has_shapes = category == kCpuOp && event_.given(shapes);
        columns.set(cShapes, has_shapes ? strings.intern(event_.value[shapes].all()) : -1);
        columns.set(cDevice, int32_t(args.device));
        columns.set(cStream, int32_t(args.stream));
        columns.set(cCorrelation, args.correlation);
        columns.set(cExternalId, args.external_id);
        columns.set(cBytes, args.bytes);
        columns.set(cSequence, args.sequence);
        columns.set(cForwardThread, args.forward_thread);
        if (args.has_stack) stacks.emplace_back(int64_t(columns.size()) - 1, strings.intern({stack_.data(), stack_.size()}));
        return true;
    }

    struct Arguments {
        int64_t device = -1, stream = -1, correlation = -1, external_id = -1, bytes = -1, sequence = -1, forward_thread = -1;
        bool has_grid = false, has_stack = false;
    };

    bool read_arguments(int category, Arguments& args) {
        if (!first_of(kExternalId, kExternalId2021, args.external_id)) return false;
        if (category == kCpuOp || category == kAnnotation)
            return integer(kSequence, args.sequence) && integer(kForwardThread, args.forward_thread) && read_stack(args);
        if (category == kRuntime) return integer(kCorrelation, args.correlation);
        if (category < kKernel || category > kSync) return true;
        return integer(kCorrelation, args.correlation) && integer(kDevice, args.device) && integer(kStream, args.stream) &&
               first_of(kBytes, kSize, args.bytes) && read_grid(args);
    }

    Reading time(Field field, int64_t& out) const {
        return event_.has(field) ? read_time(event_.value[field], out) : Reading::absent;
    }

    bool integer(Field field, int64_t& out) const {
        if (!event_.given(field)) return true;
        const Value& value = event_.value[field];
        return (value.is_text() ? read_digits(value.inner(), out) : read_integer(value, out)) == Reading::plain;
    }

    bool first_of(Field field, Field instead, int64_t& out) const {  // -1, written out, is as good as absent
        if (!event_.has(field)) return integer(instead, out);
        const Value& value = event_.value[field];
        return !(value.all() == "-1") && !value.is_null() && integer(field, out);
    }

    bool text_of(Field field, Text& out, std::string& scratch) const {
        out = {"", 0};
        if (!event_.given(field)) return true;
        const Value& value = event_.value[field];
        if (value.is_text()) {
            out = value.inner();
            if (event_.odd && std::memchr(out.at, '\\', out.size)) {
                unescape(out, scratch);
                out = {scratch.data(), scratch.size()};
            }
            return true;
        }
        out = value.all();
        int64_t ignored;
        return out.size <= 18 && !(out == "-0") && read_integer(value, ignored) == Reading::plain;
    }

    bool read_grid(Arguments& args) {  // [8, 4, 1] as 8x4x1
        if (!event_.given(kGrid)) return true;
        const Value& value = event_.value[kGrid];
        args.has_grid = true;
        grid_.clear();
        if (*value.begin != '[' || value.all().size > 100) return false;
        for (const char* p = value.begin + 1; p < value.end - 1; ++p) {
            if (is_digit(*p)) grid_ += *p;
            else if (*p == ',') grid_ += 'x';
            else if (!is_space(*p)) return false;
        }
        return true;
    }

    bool read_stack(Arguments& args) {
        if (!event_.given(kCallStack)) return true;
        Text text;
        if (!event_.value[kCallStack].is_text() || !text_of(kCallStack, text, stack_)) return false;
        args.has_stack = text.size > 0;
        if (text.at != stack_.data()) stack_.assign(text.at, text.size);
        return true;
    }

    void note_message(int category, Text name) {  // the words of a collective are Python's to understand
        if (category != kCpuOp && category != kAnnotation && category != kKernel) return;
        bool found = event_.given(kCollective);
        for (const char* prefix : {"nccl:", "gloo:", "hccl:", "xccl:", "c10d::"}) found = found || name.starts_with(prefix);
        if (!found) return;
        std::string body;
        if (event_.has(kArgs)) body.assign(event_.value[kArgs].begin, event_.value[kArgs].end);
        rare.push_back({int64_t(columns.size()), std::string(name.at, name.size), std::move(body)});
    }

    bool rename_copy(Text& name) {  // an MTIA copy gets the name that every other device gives it
        if (!(name == "dma_request") || !event_.has(kArgs)) return true;
        Text direction;
        if (!event_.has(kDirection)) direction = {"", 0};
        else if (!event_.value[kDirection].is_text() || event_.odd) return false;
        else direction = event_.value[kDirection].inner();
        copy_ = "Memcpy ";
        copy_ += direction == "DEVICE_TO_HOST" ? "DtoH" : direction == "HOST_TO_DEVICE" ? "HtoD"
               : direction == "DEVICE_TO_DEVICE" ? "DtoD" : "unknown";
        copy_ += " (dma_request)";
        name = {copy_.data(), copy_.size()};
        return true;
    }

    static constexpr int8_t kUnseen = -1, kByName = -2;

    int category_of(int32_t cat, Text name) {  // -1 where Python failed to tell
        if (size_t(cat) >= kinds_.size()) kinds_.resize(strings.size(), kUnseen);
        if (kinds_[size_t(cat)] == kUnseen) kinds_[size_t(cat)] = kind_of(strings[size_t(cat)]);
        if (kinds_[size_t(cat)] != kByName) return kinds_[size_t(cat)];
        const uint64_t key = uint64_t(cat) << 32 | uint32_t(names_.intern(name));
        const auto known = kinds_by_name_.find(key);
        if (known != kinds_by_name_.end()) return known->second;
        return kinds_by_name_[key] = ask(strings[size_t(cat)], name);
    }

    int8_t kind_of(Text cat) {
        for (const std::string& each : by_name)
            if (cat == each.c_str()) return kByName;
        return ask(cat, {"", 0});
    }

    int8_t ask(Text cat, Text name) {  // once per category, or per category and name
        const PyGILState_STATE state = PyGILState_Ensure();
        PyObject* const answer = PyObject_CallFunction(
            categorise_, "s#s#", cat.at, Py_ssize_t(cat.size), name.at, Py_ssize_t(name.size));
        const long category = answer ? PyLong_AsLong(answer) : -1;
        Py_XDECREF(answer);
        if (PyErr_Occurred()) PyErr_Clear();  // the reference meets the same fault, and raises it
        PyGILState_Release(state);
        return int8_t(category);
    }

    PyObject* categorise_;
    Index index_;
    Event event_{};
    size_t token_ = 0, odd_ = 0;
    std::string name_, copy_, cat_, pid_, tid_, grid_, stack_;
    std::vector<int8_t> kinds_;
    Strings names_;
    std::unordered_map<uint64_t, int8_t> kinds_by_name_;
    Indexer indexer_ = best_indexer();
};

}  // namespace
