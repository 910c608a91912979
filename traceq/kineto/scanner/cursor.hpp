// One event after another.
#pragma once

#include "event.hpp"

namespace {

enum Verdict : int { kMore, kFull, kHandOver };

struct Cursor {
    size_t position = 0;
    bool comma_due = false;  // an event stands right before the position
};

// Reads the events of base[position:to], which kPadding writable bytes follow, while there is room and each is taken.
template <class HasRoom, class Take>
Verdict read_events(Parser& parser, Cursor& cursor, char* base, size_t to, HasRoom has_room, Take take) {
    const char* const limit = base + to;
    std::memset(base + to, 0, kPadding);
    const auto stop = [limit](const char* at) { return at + 16 >= limit ? kMore : kHandOver; };
    while (has_room()) {
        const char* start = skip_space(base + cursor.position);
        if (cursor.comma_due) {
            if (*start != ',') return stop(start);
            start = skip_space(start + 1);
        }
        if (*start != '{') return stop(start);
        cursor.position = size_t(start - base);
        cursor.comma_due = false;
        const char* const end = parser.parse(start);
        if (!end) return stop(parser.fault);
        if (!take(between(start, end))) return kHandOver;
        cursor.position = size_t(end - base);
        cursor.comma_due = true;
    }
    return kFull;
}

}  // namespace
