// A table of all strings, and one of values that are likely to come again.
#pragma once

#include <string>
#include <vector>

#include "text.hpp"

namespace {

class Strings {  // text -> its number, in order of first sight
public:
    int32_t intern(Text text) {
        const uint32_t hash = hash_of(text);
        for (size_t slot = hash & mask_;; slot = (slot + 1) & mask_) {
            const int32_t id = slots_[slot];
            if (id < 0) return insert(text, hash, slot);
            const Entry& entry = entries_[size_t(id)];
            if (entry.hash == hash && is_same(entry.text, text)) return id;
        }
    }
    size_t size() const { return entries_.size(); }
    Text operator[](size_t id) const { return entries_[id].text; }

private:
    struct Entry { std::string text; uint32_t hash; };

    static TRACEQ_INLINE bool is_same(Text one, Text other) {
        return one.size() == other.size() && ::is_same(one.data(), other.data(), one.size());
    }

    uint32_t hash_of(Text text) const {
        constexpr uint64_t factor = 0x9e3779b97f4a7c15;
        const auto mix = [](uint64_t hash, uint64_t word) { return hash = (hash ^ word) * factor, hash ^ hash >> 29; };
        uint64_t even = seed_ ^ text.size(), odd = ~seed_;  // two at a time: a product takes its time
        const char *p = text.data(), *const end = p + text.size();
        for (; end - p > 16; p += 16) even = mix(even, load8(p)), odd = mix(odd, load8(p + 8));
        if (end - p > 8) even = mix(even, load8(p));
        odd = mix(odd, text.size() < 8 ? short_word(p, text.size()) : load8(end - 8));
        const uint64_t hash = mix(even, odd);
        return uint32_t(hash >> 32 ^ hash);
    }

    int32_t insert(Text text, uint32_t hash, size_t slot) {
        const auto id = int32_t(entries_.size());
        entries_.push_back({std::string(text), hash});
        slots_[slot] = id;
        if (entries_.size() * 2 > slots_.size()) grow();
        return id;
    }

    void grow() {
        slots_.assign(slots_.size() * 2, -1);
        mask_ = slots_.size() - 1;
        for (size_t id = 0; id < entries_.size(); ++id) {
            size_t slot = entries_[id].hash & mask_;
            while (slots_[slot] >= 0) slot = (slot + 1) & mask_;
            slots_[slot] = int32_t(id);
        }
    }

    std::vector<Entry> entries_;
    std::vector<int32_t> slots_ = std::vector<int32_t>(4096, -1);
    size_t mask_ = 4095;
    uint64_t seed_ = uint64_t(reinterpret_cast<uintptr_t>(this)) * 0xd6e8feb86659fd93;  // hostile names cannot know it
};

struct Value {  // as written
    char text[56];
    uint32_t size = 0;
    int32_t id = -1;  // of what it says, once that is a string

    bool begins(const char* p) const { return size && is_same_padded(text, p, size); }
    bool is(Text other) const { return size == other.size() && is_same_padded(text, other.data(), size); }
    void learn(Text written, int32_t number = -1) {
        if (written.size() > sizeof text) return;
        std::memcpy(text, written.data(), written.size());
        size = uint32_t(written.size()), id = number;
    }
};

class Values {  // those met last, by how they begin; by what follows, too, where they are short
public:
    Value& at(const char* p) { return values_[((load8(p) ^ load8(p + 8) << 1) * 0x9e3779b97f4a7c15) >> 56]; }

private:
    Value values_[256];
};

}  // namespace
