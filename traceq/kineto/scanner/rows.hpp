// Events to rows.
#pragma once

#include <Python.h>

#include <array>
#include <string>
#include <unordered_map>
#include <vector>

#include "cursor.hpp"

namespace {

// Values of traceq.model.Category that decide which arguments a row has.
enum Category : int { kByName = -2, kUnknown = -1, kCpuOp = 1, kAnnotation = 2, kRuntime = 4, kKernel = 5, kSync = 8, kPython = 9 };

constexpr int64_t kLongestNs = 1000000000000000000;

enum Column : int {
    cTs, cDur, cCategory, cName, cCat, cPid, cTid, cGrid, cShapes, cTypes, cStrides, cInputs, cDevice, cStream, cCorrelation, cExternalId,
    cBytes, cSequence, cForwardThread, kNumColumns,
};
constexpr size_t kWidths[kNumColumns] = {8, 8, 1, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 8, 8, 8, 8, 8};
constexpr char kColumnNames[] =  // and the side tables, which Python keeps
    "ts dur category name cat pid tid grid shapes types strides inputs device stream correlation external_id bytes sequence forward_thread "
    "strings messages stacks allocations waits nodes";

struct Columns {  // room for so many rows, lent by Python
    char* at[kNumColumns];
    size_t room;
};

class Scanner {
public:
    Scanner(PyObject* categorise, PyObject* decode) : categorise_(categorise), decode_(decode) {}
    Scanner(const Scanner&) = delete;
    ~Scanner() { Py_DECREF(categorise_), Py_DECREF(decode_); }

    Strings strings, messages;                       // a message: its arguments, NUL, the event's name
    std::vector<std::array<int64_t, 9>> allocations; // the columns of Allocations
    std::vector<std::array<int64_t, 3>> sent;        // row, number of the message, `Seq`
    std::vector<std::array<int64_t, 2>> stacks;      // row, number of the string; of a Python frame the line that called it
    std::vector<std::array<int64_t, 3>> waits;       // the columns of EventWaits
    std::vector<std::array<int64_t, 4>> nodes;       // the columns of GraphNodes
    std::vector<std::string> named;                  // metadata events that name a thread or a process
    int64_t num_dropped = 0, num_counters = 0;
    Cursor cursor;
    size_t row = 0;  // what stands before the cursor is in the rows before this one
    bool busy = false;

    // Reads base[position:to], which kPadding writable bytes follow.
    Verdict scan(char* base, size_t to, const Columns& columns) {
        columns_ = columns;
        return read_events(
            parser_, cursor, base, to, [this] { return row < columns_.room; }, [this](Text whole) { return is_sound() && emit(whole); });
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
        PyObject* const decoded = PyObject_CallFunction(decode_, "y#", text.data(), Py_ssize_t(text.size()));
        char* at;
        Py_ssize_t size;
        const bool done = decoded && PyBytes_AsStringAndSize(decoded, &at, &size) == 0;
        if (done) out.assign(at, size_t(size));
        Py_XDECREF(decoded);
        forget_fault();
        PyGILState_Release(state);
        return done;
    }

    static void forget_fault() {  // the reference meets the same one, and raises it
        if (PyErr_Occurred() && PyErr_ExceptionMatches(PyExc_KeyboardInterrupt)) PyErr_SetInterrupt();
        PyErr_Clear();
    }

    // ---- one event: false where the reference must read it

    bool emit(Text whole) {
        if (!event_.has(kPh)) return true;
        const Text ph = event_.value[kPh];
        if (!parser_.odd.empty() && ph.find('\\') != Text::npos) return false;
        if (ph == "\"X\"") return emit_complete();
        if (ph == "\"C\"") return ++num_counters, true;
        if (ph != "\"M\"" && ph != "\"i\"") return true;
        Text name;
        if (!text_of(kName, name, name_)) return false;
        if (ph == "\"i\"") return name != "[memory]" || emit_allocation();
        if (name == "thread_name" || name == "process_name" || name == "process_labels") named.emplace_back(whole);
        return true;
    }

    bool emit_allocation() {
        if (!event_.has(kTs)) return ++num_dropped, true;
        int32_t pid, tid;
        if (!event_.was_read(kTs) || !id_of(kPid, pid) || !id_of(kTid, tid)) return false;
        std::array<int64_t, 9> allocation = {event_.number[kTs], pid, tid, -1, -1, -1, -1, -1, -1};
        for (int i = 0; i < 6; ++i)
            if (!integer(Field(kMemoryBytes + i), allocation[size_t(3 + i)])) return false;
        allocations.push_back(allocation);
        return true;
    }

    template <class Value> Value& cell(int column) { return reinterpret_cast<Value*>(columns_.at[column])[row]; }

    bool emit_complete() {  // the row counts once all of it is known to be good, and so do its entries in side tables
        if (!event_.has(kTs) || !event_.has(kDur)) return ++num_dropped, true;
        if (!event_.was_read(kTs) || !event_.was_read(kDur)) return false;
        const int64_t dur = event_.number[kDur];
        if (dur < 0 || dur > kLongestNs) return ++num_dropped, true;
        cell<int64_t>(cTs) = event_.number[kTs], cell<int64_t>(cDur) = dur;
        Text name, stack;
        if (!text_of(kName, name, name_) || !id_of(kCat, cell<int32_t>(cCat))) return false;
        if (!id_of(kPid, cell<int32_t>(cPid)) || !id_of(kTid, cell<int32_t>(cTid))) return false;
        const int category = category_of(cell<int32_t>(cCat), name);
        cell<int8_t>(cCategory) = int8_t(category);
        for (int column = cGrid; column <= cStream; ++column) cell<int32_t>(column) = -1;
        for (int column = cCorrelation; column <= cForwardThread; ++column) cell<int64_t>(column) = -1;
        std::array<int64_t, 3> wait = {int64_t(row), -1, -1};
        std::array<int64_t, 4> node = {int64_t(row), -1, -1, -1};
        if (category < 0 || !read_arguments(category, stack, wait) || !read_node(category, node)) return false;
        Text renamed = name;
        if (!rename_copy(renamed) || !note_message(category, name)) return false;
        cell<int32_t>(cName) = strings.intern(renamed);
        if (!stack.empty()) stacks.push_back({int64_t(row), strings.intern(stack)});
        if (wait[1] >= 0 && wait[2] > 0) waits.push_back(wait);
        if (node[1] > 0 || node[2] > 0) nodes.push_back(node);
        ++row;
        return true;
    }

    bool read_arguments(int category, Text& stack, std::array<int64_t, 3>& wait) {
        if (!first_of(kExternalId, kExternalId2021, cell<int64_t>(cExternalId))) return false;
        if (category == kRuntime) return integer(kCorrelation, cell<int64_t>(cCorrelation));
        if (category == kCpuOp || category == kAnnotation) {
            if (category == kCpuOp) {
                id_as_written(event_.given(kDims) ? kDims : kDims2021, cShapes);
                id_as_written(kTypes, cTypes);
                id_as_written(kStrides, cStrides);
                id_as_written(kInputs, cInputs);
            }
            return integer(kSequence, cell<int64_t>(cSequence)) && integer(kForwardThread, cell<int64_t>(cForwardThread)) &&
                   stack_of(kCallStack, stack);
        }
        if (category == kPython) return stack_of(kCallFrom, stack);
        if (category < kKernel || category > kSync) return true;
        int64_t device = -1, stream = -1;
        const bool done = integer(kCorrelation, cell<int64_t>(cCorrelation)) && integer(kDevice, device) && integer(kStream, stream) &&
                          first_of(kBytes, kSize, cell<int64_t>(cBytes)) && (!event_.given(kGrid) || read_grid()) &&
                          (category != kSync || (integer(kWaitOnStream, wait[1]) && integer(kEventRecord, wait[2])));
        cell<int32_t>(cDevice) = int32_t(device), cell<int32_t>(cStream) = int32_t(stream);
        return done;
    }

    bool stack_of(Field field, Text& stack) { return !event_.given(field) || (event_.value[field][0] == '"' && text_of(field, stack, stack_)); }

    bool read_node(int category, std::array<int64_t, 4>& node) {
        if (category < kKernel || category > kSync) return true;
        if (!integer(kGraph, node[1]) || !integer(kGraphNode, node[2])) return false;
        if (node[1] <= 0 && node[2] <= 0) return true;
        for (const Field label : {kLabelModule, kLabel, kLabel213, kLabelUnnamed}) {
            if (!event_.given(label)) continue;
            Text text;
            if (!text_of(label, text, scratch_)) return false;
            if (!text.empty()) node[3] = strings.intern(text);
            break;
        }
        return true;
    }

    // The number of what a value says, of which there are few.
    template <class Meaning> bool id_of(Values& values, Text written, int32_t& out, Meaning meaning) {
        Value& last = values.at(written.data());
        if (last.is(written)) return out = last.id, true;
        Text text;
        if (!meaning(written, text)) return false;
        last.learn(written, out = strings.intern(text));
        return true;
    }

    bool id_of(Field field, int32_t& out) {
        if (!event_.given(field)) return out = strings.intern(""), true;
        const auto meaning = [this](Text written, Text& text) { return text_of(written, text, scratch_); };
        return id_of(texts_, event_.value[field], out, meaning);
    }

    void id_as_written(Field field, Column column) {
        const auto itself = [](Text written, Text& text) { return text = written, true; };
        if (event_.given(field)) id_of(inputs_, event_.value[field], cell<int32_t>(column), itself);
    }

    bool integer(Field field, int64_t& out) const {
        if (event_.was_read(field)) out = event_.number[field];
        return event_.was_read(field) || !event_.given(field);
    }

    bool first_of(Field field, Field instead, int64_t& out) const {  // -1, written out, is as good as absent
        return event_.has(field) ? event_.was_read(field) && (out = event_.number[field]) != -1 : integer(instead, out);
    }

    bool text_of(Field field, Text& out, std::string& scratch) const {
        return event_.given(field) ? text_of(event_.value[field], out, scratch) : (out = "", true);
    }

    bool text_of(Text written, Text& out, std::string& scratch) const {
        out = written;
        if (out[0] != '"') {  // an integer, as people write it
            const char *const digits = out.data() + (out[0] == '-'), *const end = out.data() + out.size();
            return digits < end && skip_digits(digits) == end && out.size() <= 18 && out != "-0";
        }
        out = out.substr(1, out.size() - 2);
        if (parser_.odd.empty() || out.find('\\') == Text::npos) return true;
        if (!decode(written, scratch)) return false;
        out = scratch;
        return true;
    }

    bool read_grid() {  // [8, 4, 1] as 8x4x1
        const Text grid = event_.value[kGrid];
        return grid[0] == '[' && id_of(grids_, grid, cell<int32_t>(cGrid), [this](Text written, Text& text) {
            scratch_.clear();
            for (const char c : written.substr(1, written.size() - 2)) {
                if (is_digit(c) || c == ',') scratch_ += c == ',' ? 'x' : c;
                else if (!is_space(c)) return false;
            }
            text = scratch_;
            return true;
        });
    }

    bool note_message(int category, Text name) {  // the words of a collective are Python's to understand, each once
        if (category != kCpuOp && category != kAnnotation && category != kKernel) return true;
        bool is_collective = event_.given(kCollective);
        if (name.size() > 4 && name[4] == ':')
            for (const Text prefix : {"nccl:", "gloo:", "hccl:", "xccl:", "c10d::"})
                is_collective = is_collective || name.substr(0, prefix.size()) == prefix;
        if (!is_collective) return true;
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
        const auto entry = kinds_by_name_.find(scratch_);
        return entry != kinds_by_name_.end() ? entry->second : kinds_by_name_[scratch_] = ask(strings[size_t(cat)], name);
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
    std::string name_, copy_, stack_, scratch_;
    Values texts_, inputs_, grids_;
    Columns columns_{};
    std::vector<int> kinds_;
    std::unordered_map<std::string, int> kinds_by_name_;
};

}  // namespace
