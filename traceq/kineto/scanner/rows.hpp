// Events to rows.
#pragma once

#include <Python.h>

#include <array>
#include <string>
#include <unordered_map>
#include <vector>

#include "event.hpp"
#include "numbers.hpp"
#include "strings.hpp"

namespace {

// Values of traceq.model.Category that decide which arguments a row has.
enum Category : int { kByName = -2, kUnknown = -1, kCpuOp = 1, kAnnotation = 2, kRuntime = 4, kKernel = 5, kSync = 8 };

constexpr int64_t kLongestNs = 1000000000000000000;

enum Column : int {
    cTs, cDur, cCategory, cName, cCat, cPid, cTid, cGrid, cShapes, cTypes, cDevice, cStream, cCorrelation, cExternalId,
    cBytes, cSequence, cForwardThread, kNumColumns,
};
constexpr size_t kWidths[kNumColumns] = {8, 8, 1, 4, 4, 4, 4, 4, 4, 4, 4, 4, 8, 8, 8, 8, 8};
constexpr char kColumnNames[] =  // and the side tables, which Python keeps
    "ts dur category name cat pid tid grid shapes types device stream correlation external_id bytes sequence forward_thread "
    "strings messages stacks allocations waits";

struct Columns {  // room for so many rows, lent by Python
    char* at[kNumColumns];
    size_t room;
};

enum Verdict : int { kMore, kFull, kHandOver };

class Scanner {
public:
    Scanner(PyObject* categorise, PyObject* decode) : categorise_(categorise), decode_(decode) {}
    Scanner(const Scanner&) = delete;
    ~Scanner() { Py_DECREF(categorise_), Py_DECREF(decode_); }

    Strings strings, messages;                       // a message: its arguments, NUL, the event's name
    std::vector<std::array<int64_t, 9>> allocations; // the columns of Allocations
    std::vector<std::array<int64_t, 3>> sent;        // row, number of the message, `Seq`
    std::vector<std::array<int64_t, 2>> stacks;      // row, number of the string
    std::vector<std::array<int64_t, 3>> waits;       // the columns of EventWaits
    std::vector<std::string> threads;                // metadata events that name one
    int64_t num_dropped = 0;
    size_t position = 0, row = 0;  // what stands before it is in the rows before this one
    bool comma_due = false;        // an event stands right before the position
    bool busy = false;

    // Reads base[position:to], which kPadding writable bytes follow.
    Verdict scan(char* base, size_t to, const Columns& columns) {
        const char* const limit = base + to;
        std::memset(base + to, 0, kPadding);
        const auto stop = [limit](const char* at) { return at + 16 >= limit ? kMore : kHandOver; };
        while (row < columns.room) {
            const char* start = skip_space(base + position);
            if (comma_due) {
                if (*start != ',') return stop(start);
                start = skip_space(start + 1);
            }
            if (*start != '{') return stop(start);
            position = size_t(start - base);
            comma_due = false;
            const char* const end = parser_.parse(start);
            if (!end) return stop(parser_.fault);
            if (!is_sound() || !emit(between(start, end), columns)) return kHandOver;
            position = size_t(end - base);
            comma_due = true;
        }
        return kFull;
    }

private:
    // ---- strings that are not plain ASCII: rare, and Python's to judge

    bool is_sound() {  // each string of an event
        for (const Text text : parser_.odd)
            if (!decode(text, scratch_)) return false;
        return true;
    }

    bool decode(Text text, std::string& out) const {  // false where it is no JSON, or not UTF-8
        const PyGILState_STATE state = PyGILState_Ensure();
        PyObject* const found = PyObject_CallFunction(decode_, "y#", text.data(), Py_ssize_t(text.size()));
        char* at;
        Py_ssize_t size;
        const bool done = found && PyBytes_AsStringAndSize(found, &at, &size) == 0;
        if (done) out.assign(at, size_t(size));
        Py_XDECREF(found);
        forget_fault();
        PyGILState_Release(state);
        return done;
    }

    static void forget_fault() {  // the reference meets the same one, and raises it
        if (PyErr_Occurred() && PyErr_ExceptionMatches(PyExc_KeyboardInterrupt)) PyErr_SetInterrupt();
        PyErr_Clear();
    }

    // ---- one event: false where the reference must read it

    bool emit(Text whole, const Columns& columns) {
        if (!event_.has(kPh)) return true;
        const Text ph = event_.value[kPh];
        if (!parser_.odd.empty() && ph.find('\\') != Text::npos) return false;
        if (ph == "\"X\"") return emit_complete(columns);
        if (ph != "\"M\"" && ph != "\"i\"") return true;
        Text name;
        if (!text_of(kName, name, name_)) return false;
        if (ph == "\"i\"") return name != "[memory]" || emit_allocation();
        if (name == "thread_name") threads.emplace_back(whole);
        return true;
    }

    bool emit_allocation() {
        Text pid, tid;
        int64_t ts = 0;
        const Reading has_ts = time(kTs, ts);
        if (has_ts == Reading::absent) return ++num_dropped, true;
        if (has_ts == Reading::other || !text_of(kPid, pid, pid_) || !text_of(kTid, tid, tid_)) return false;
        std::array<int64_t, 9> found = {ts, 0, 0, -1, -1, -1, -1, -1, -1};
        for (int i = 0; i < 6; ++i)
            if (!integer(Field(kMemoryBytes + i), found[size_t(3 + i)])) return false;
        found[1] = strings.intern(pid, last_pid_);
        found[2] = strings.intern(tid, last_tid_);
        allocations.push_back(found);
        return true;
    }

    bool emit_complete(const Columns& columns) {
        int64_t ts = 0, dur = 0;
        const Reading has_ts = time(kTs, ts), has_dur = time(kDur, dur);
        if (has_ts == Reading::other || has_dur == Reading::other) return false;
        if (has_ts == Reading::absent || has_dur == Reading::absent || dur < 0 || dur > kLongestNs) return ++num_dropped, true;
        Text name, cat, pid, tid;
        if (!text_of(kName, name, name_) || !text_of(kCat, cat, cat_)) return false;
        if (!text_of(kPid, pid, pid_) || !text_of(kTid, tid, tid_)) return false;
        const int32_t cat_id = strings.intern(cat, last_cat_);
        const int category = category_of(cat_id, name);
        Arguments args;
        if (category < 0 || !read_arguments(category, args) || !note_message(category, name) || !rename_copy(name)) return false;
        const auto set = [this, &columns](Column column, auto value) {
            reinterpret_cast<decltype(value)*>(columns.at[column])[row] = value;
        };
        set(cTs, ts);
        set(cDur, dur);
        set(cCategory, int8_t(category));
        set(cName, strings.intern(name));
        set(cCat, cat_id);
        set(cPid, strings.intern(pid, last_pid_));
        set(cTid, strings.intern(tid, last_tid_));
        set(cGrid, args.has_grid ? strings.intern(grid_, last_grid_) : int32_t(-1));
        const Field shapes = event_.given(kDims) ? kDims : kDims2021;
        set(cShapes, category == kCpuOp && event_.given(shapes) ? strings.intern(event_.value[shapes], last_shapes_) : int32_t(-1));
        set(cTypes, category == kCpuOp && event_.given(kTypes) ? strings.intern(event_.value[kTypes], last_types_) : int32_t(-1));
        set(cDevice, int32_t(args.device));
        set(cStream, int32_t(args.stream));
        set(cCorrelation, args.correlation);
        set(cExternalId, args.external_id);
        set(cBytes, args.bytes);
        set(cSequence, args.sequence);
        set(cForwardThread, args.forward_thread);
        if (!args.stack.empty()) stacks.push_back({int64_t(row), strings.intern(args.stack)});
        if (args.wait_on_stream >= 0 && args.event_record > 0)
            waits.push_back({int64_t(row), args.wait_on_stream, args.event_record});
        ++row;
        return true;
    }

    struct Arguments {
        int64_t device = -1, stream = -1, correlation = -1, external_id = -1, bytes = -1, sequence = -1, forward_thread = -1;
        int64_t wait_on_stream = -1, event_record = -1;
        bool has_grid = false;
        Text stack;
    };

    bool read_arguments(int category, Arguments& args) {
        if (!first_of(kExternalId, kExternalId2021, args.external_id)) return false;
        if (category == kCpuOp || category == kAnnotation)
            return integer(kSequence, args.sequence) && integer(kForwardThread, args.forward_thread) &&
                   (!event_.given(kCallStack) || (event_.value[kCallStack][0] == '"' && text_of(kCallStack, args.stack, stack_)));
        if (category == kRuntime) return integer(kCorrelation, args.correlation);
        if (category < kKernel || category > kSync) return true;
        args.has_grid = event_.given(kGrid);
        return integer(kCorrelation, args.correlation) && integer(kDevice, args.device) && integer(kStream, args.stream) &&
               first_of(kBytes, kSize, args.bytes) && (!args.has_grid || read_grid()) &&
               (category != kSync || (integer(kWaitOnStream, args.wait_on_stream) && integer(kEventRecord, args.event_record)));
    }

    Reading time(Field field, int64_t& out) const {
        return event_.has(field) ? read_time(event_.value[field], out) : Reading::absent;
    }

    bool integer(Field field, int64_t& out) const { return !event_.given(field) || read_integer(event_.value[field], out); }

    bool first_of(Field field, Field instead, int64_t& out) const {  // -1, written out, is as good as absent
        if (!event_.has(field)) return integer(instead, out);
        return event_.value[field] != "-1" && event_.given(field) && integer(field, out);
    }

    bool text_of(Field field, Text& out, std::string& scratch) const {
        out = "";
        if (!event_.given(field)) return true;
        out = event_.value[field];
        if (out[0] != '"') {
            int64_t ignored;
            return out.size() <= 18 && out != "-0" && read_integer(out, ignored);
        }
        if (!parser_.odd.empty() && out.find('\\') != Text::npos) {
            if (!decode(out, scratch)) return false;
            out = scratch;
        } else {
            out = out.substr(1, out.size() - 2);
        }
        return true;
    }

    bool read_grid() {  // [8, 4, 1] as 8x4x1
        const Text grid = event_.value[kGrid];
        if (grid[0] != '[' || grid.size() > 100) return false;
        grid_.clear();
        for (const char c : grid.substr(1, grid.size() - 2)) {
            if (is_digit(c) || c == ',') grid_ += c == ',' ? 'x' : c;
            else if (!is_space(c)) return false;
        }
        return true;
    }

    bool note_message(int category, Text name) {  // the words of a collective are Python's to understand, each once
        if (category != kCpuOp && category != kAnnotation && category != kKernel) return true;
        bool found = event_.given(kCollective);
        for (const Text prefix : {"nccl:", "gloo:", "hccl:", "xccl:", "c10d::"})
            found = found || name.substr(0, prefix.size()) == prefix;
        if (!found) return true;
        scratch_ = "{";
        for (int field = kCollective; field <= kTypes; ++field)
            if (event_.has(Field(field)))
                scratch_.append(scratch_.size() > 1 ? ",\"" : "\"").append(kKeys[field]).append("\":").append(event_.value[field]);
        scratch_.append("}").append(1, '\0').append(name);
        int64_t sequence = -1;
        if (!integer(kMessageSequence, sequence)) return false;
        sent.push_back({int64_t(row), messages.intern(scratch_), sequence});
        return true;
    }

    bool rename_copy(Text& name) {  // an MTIA copy gets the name that every other device gives it
        if (name != "dma_request" || !event_.has(kArgs)) return true;
        Text direction;
        if (event_.has(kDirection) && (event_.value[kDirection][0] != '"' || !parser_.odd.empty())) return false;
        if (event_.has(kDirection)) direction = event_.value[kDirection];
        copy_ = "Memcpy ";
        copy_ += direction == "\"DEVICE_TO_HOST\"" ? "DtoH" : direction == "\"HOST_TO_DEVICE\"" ? "HtoD"
               : direction == "\"DEVICE_TO_DEVICE\"" ? "DtoD" : "unknown";
        copy_ += " (dma_request)";
        name = copy_;
        return true;
    }

    int category_of(int32_t cat, Text name) {  // kUnknown where Python failed to tell
        if (size_t(cat) >= kinds_.size()) kinds_.resize(strings.size(), kUnknown);
        int& kind = kinds_[size_t(cat)];
        if (kind == kUnknown) kind = ask(strings[size_t(cat)], {});
        if (kind != kByName) return kind;
        scratch_.assign(std::to_string(cat)).append(1, ' ').append(name);
        const auto known = kinds_by_name_.find(scratch_);
        return known != kinds_by_name_.end() ? known->second : kinds_by_name_[scratch_] = ask(strings[size_t(cat)], name);
    }

    int ask(Text cat, Text name) const {  // once per category, and per name where that takes it
        const PyGILState_STATE state = PyGILState_Ensure();
        PyObject* const answer = PyObject_CallFunction(
            categorise_, "s#z#", cat.data(), Py_ssize_t(cat.size()), name.data(), Py_ssize_t(name.size()));
        const long category = answer ? PyLong_AsLong(answer) : long(kUnknown);
        Py_XDECREF(answer);
        forget_fault();
        PyGILState_Release(state);
        return int(category);
    }

    PyObject *categorise_, *decode_;
    Parser parser_;
    const Event& event_ = parser_.event;
    std::string name_, copy_, cat_, pid_, tid_, grid_, stack_, scratch_;
    int32_t last_cat_ = -1, last_pid_ = -1, last_tid_ = -1, last_grid_ = -1, last_shapes_ = -1, last_types_ = -1;
    std::vector<int> kinds_;
    std::unordered_map<std::string, int> kinds_by_name_;
};

}  // namespace
