// Values of chosen keys of every event that lasts, whatever it is.
#pragma once

#include <string>
#include <vector>

#include "cursor.hpp"

namespace {

// Bits of `Cells::kinds`.
enum Kind : uint32_t { kAbsentKind = 1, kNullKind = 2, kIntegerKind = 4, kDecimalKind = 8, kStringKind = 16, kOtherKind = 32 };

struct Cells {  // the rows that have a value: as a number where it is a plain one, else as the number of its text
    std::vector<int32_t> number_rows, text_rows, texts;
    std::vector<int64_t> numbers;
    uint32_t kinds = 0;  // of all events
};

class ValueScanner {
public:
    // Keeps, besides the values of an event itself, which are kKeys' first ones, those of arguments with these keys.
    explicit ValueScanner(std::vector<std::string> arguments)
        : arguments_(std::move(arguments)), names_(kKeys, kKeys + kFirstArgument), parser_(keys()) {
        columns.resize(names_.size());
    }
    ValueScanner(const ValueScanner&) = delete;

    // The number of keys that fit.
    static constexpr size_t kMostArguments = kMostFields - kFirstArgument;

    const std::vector<std::string>& event_keys() const { return parser_.event_keys; }

    std::vector<Cells> columns;  // by field
    std::vector<int32_t> index;  // of each row among all events
    Strings strings;             // values as written
    Cursor cursor;
    int32_t num_events = 0;
    bool busy = false;

    Verdict scan(char* base, size_t to) {
        return read_events(parser_, cursor, base, to, [] { return true; }, [this](Text) { return emit(), true; });
    }

private:
    Keys keys() {
        names_.insert(names_.end(), arguments_.begin(), arguments_.end());
        return {names_.data(), int(names_.size()), 0, ~uint64_t{0}};
    }

    // As JSON has it: an integer of at most 18 digits, another number, a string, null or anything else.
    static Kind kind_of(Text value) {
        if (value[0] == '"') return kStringKind;
        if (value[0] == 'n') return kNullKind;
        const size_t sign = value[0] == '-';
        if (!is_digit(value[sign])) return kOtherKind;
        const auto size = size_t(skip_digits(value.data() + sign) - value.data());
        return size < value.size() ? kDecimalKind : size <= 18 ? kIntegerKind : kOtherKind;
    }

    void emit() {
        const Event& event = parser_.event;
        const int32_t number = num_events++;
        Kind kinds[kMostFields];
        for (int field = kName; field < kArgs; ++field) {
            kinds[field] = event.has(Field(field)) ? kind_of(event.value[field]) : kAbsentKind;
            columns[size_t(field)].kinds |= kinds[field];
        }
        constexpr uint32_t none = kAbsentKind | kNullKind;
        if (((kinds[kDur] | kinds[kCat]) & none) || event.value[kCat] == "\"Trace\"") return;
        const auto row = int32_t(index.size());
        index.push_back(number);
        for (int field = kName; field < kArgs; ++field)
            if (kinds[field] != kAbsentKind) add(field, kinds[field], row);
        for (uint64_t left = event.present >> kFirstArgument << kFirstArgument; left; left &= left - 1) {
            const int field = lowest_bit(left);
            const Kind kind = kind_of(event.value[field]);
            columns[size_t(field)].kinds |= kind;
            add(field, kind, row);
        }
    }

    void add(int field, Kind kind, int32_t row) {
        Cells& cells = columns[size_t(field)];
        const Text value = parser_.event.value[field];
        int64_t number;
        const bool is_time = bit(field) & kTimes;
        if (is_time ? has_three_decimals_at_most(value) && read_time(value.data(), number)
                    : kind == kIntegerKind && read_integer(value.data(), number)) {
            cells.number_rows.push_back(row), cells.numbers.push_back(number);
        } else {
            cells.text_rows.push_back(row), cells.texts.push_back(id_of(value));
        }
    }

    static bool has_three_decimals_at_most(Text value) {
        const size_t point = value.find('.');
        return point == Text::npos || value.size() - point <= 4;
    }

    int32_t id_of(Text value) {
        Value& last = seen_.at(value.data());
        if (last.is(value)) return last.id;
        const int32_t id = strings.intern(value);
        last.learn(value, id);
        return id;
    }

    std::vector<std::string> arguments_;
    std::vector<Text> names_;
    Parser parser_;
    Values seen_;
};

}  // namespace
