// Text: escapes, UTF-8, and a table of all strings.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "event.hpp"

namespace {

int hex4(const char* p) {
    int value = 0;
    for (int i = 0; i < 4; ++i) {
        const char c = p[i], lower = char(c | 0x20);
        if (!is_digit(c) && (lower < 'a' || lower > 'f')) return -1;
        value = value * 16 + (is_digit(c) ? c - '0' : lower - 'a' + 10);
    }
    return value;
}

size_t utf8_length(const char* p, const char* end) {  // of the character at a place; 0 where it is none
    const auto byte = [&](int i) { return static_cast<unsigned char>(p[i]); };
    const size_t size = byte(0) < 0x80 ? 1 : byte(0) >= 0xc2 && byte(0) < 0xe0 ? 2 : byte(0) >> 4 == 0xe ? 3 : byte(0) < 0xf5 && byte(0) >= 0xf0 ? 4 : 0;
    if (!size || size_t(end - p) < size) return 0;
    for (size_t i = 1; i < size; ++i)
        if (byte(int(i)) >> 6 != 2) return 0;
    if (byte(0) == 0xe0 && byte(1) < 0xa0) return 0;
    if (byte(0) == 0xed && byte(1) > 0x9f) return 0;  // a surrogate
    if (byte(0) == 0xf0 && byte(1) < 0x90) return 0;
    if (byte(0) == 0xf4 && byte(1) > 0x8f) return 0;
    return size;
}

bool is_sound(Text text) {  // valid escapes, none of them a surrogate; valid UTF-8; no control characters
    const char* const end = text.at + text.size;
    for (const char* p = text.at; p < end;) {
        if (static_cast<unsigned char>(*p) < 0x20) return false;
        if (*p != '\\') {
            const size_t size = utf8_length(p, end);
            if (!size) return false;
            p += size;
        } else if (p[1] == 'u') {
            const int code = end - p >= 6 ? hex4(p + 2) : -1;
            if (code < 0 || (code >= 0xd800 && code < 0xe000)) return false;
            p += 6;
        } else {
            if (!p[1] || !std::strchr("\"\\/bfnrt", p[1])) return false;
            p += 2;
        }
    }
    return true;
}

void append_utf8(std::string& out, int code) {
    if (code < 0x80) { out += char(code); return; }
    if (code < 0x800) { out += char(0xc0 | code >> 6); }
    else { out += char(0xe0 | code >> 12); out += char(0x80 | (code >> 6 & 0x3f)); }
    out += char(0x80 | (code & 0x3f));
}

void unescape(Text text, std::string& out) {
    static const char from[] = "bfnrt", to[] = "\b\f\n\r\t";
    out.clear();
    for (size_t i = 0; i < text.size; ++i) {
        if (text.at[i] != '\\') { out += text.at[i]; continue; }
        const char c = text.at[++i];
        if (c == 'u') { append_utf8(out, hex4(text.at + i + 1)); i += 4; continue; }
        const char* const found = std::strchr(from, c);
        out += found ? to[found - from] : c;
    }
}

class Strings {  // text -> its number, in order of first sight
public:
    int32_t intern(Text text) {
        const uint32_t hash = hash_of(text);
        for (size_t slot = hash & mask_;; slot = (slot + 1) & mask_) {
            const int32_t id = table_[slot];
            if (id < 0) return insert(text, hash, slot);
            const Entry& entry = entries_[size_t(id)];
            if (entry.hash == hash && entry.text.size == text.size && is_same(entry.text.at, text.at, text.size)) return id;
        }
    }
    size_t size() const { return entries_.size(); }
    Text operator[](size_t id) const { return entries_[id].text; }

private:
    struct Entry { Text text; uint32_t hash; };

    static TRACEQ_INLINE uint64_t short_word(const char* p, size_t size) {  // fewer than eight bytes, as a number
        if (size >= 4) return load4(p) | uint64_t(load4(p + size - 4)) << 32;
        const auto byte = [p](size_t i) { return uint64_t(static_cast<unsigned char>(p[i])); };
        return size ? byte(0) | byte(size / 2) << 8 | byte(size - 1) << 16 : 0;
    }

    static TRACEQ_INLINE bool is_same(const char* a, const char* b, size_t size) {
        if (size < 8) return short_word(a, size) == short_word(b, size);
        for (; size > 8; size -= 8, a += 8, b += 8)
            if (load8(a) != load8(b)) return false;
        return load8(a + size - 8) == load8(b + size - 8);
    }

    uint32_t hash_of(Text text) const {
        constexpr uint64_t factor = 0x9e3779b97f4a7c15;
        uint64_t hash = seed_ ^ text.size;
        const auto mix = [&hash](uint64_t word) { hash = (hash ^ word) * factor; hash ^= hash >> 29; };
        const char *p = text.at, *const end = text.at + text.size;
        for (; end - p > 8; p += 8) mix(load8(p));
        mix(text.size < 8 ? short_word(p, text.size) : load8(end - 8));
        return uint32_t(hash >> 32 ^ hash);
    }

    int32_t insert(Text text, uint32_t hash, size_t slot) {
        const auto id = int32_t(entries_.size());
        entries_.push_back({keep(text), hash});
        table_[slot] = id;
        if (entries_.size() * 2 > table_.size()) grow();
        return id;
    }

    Text keep(Text text) {
        if (text.size > left_) {
            left_ = text.size > kBlock ? text.size : kBlock;
            blocks_.emplace_back(new char[left_]);
            next_ = blocks_.back().get();
        }
        if (text.size) std::memcpy(next_, text.at, text.size);
        const Text kept{next_, text.size};
        next_ += text.size;
        left_ -= text.size;
        return kept;
    }

    void grow() {
        table_.assign(table_.size() * 2, -1);
        mask_ = table_.size() - 1;
        for (size_t id = 0; id < entries_.size(); ++id) {
            size_t slot = entries_[id].hash & mask_;
            while (table_[slot] >= 0) slot = (slot + 1) & mask_;
            table_[slot] = int32_t(id);
        }
    }

    static constexpr size_t kBlock = 64 << 10;
    std::vector<Entry> entries_;
    std::vector<int32_t> table_ = std::vector<int32_t>(4096, -1);
    size_t mask_ = 4095, left_ = 0;
    char* next_ = nullptr;
    std::vector<std::unique_ptr<char[]>> blocks_;
    uint64_t seed_ = uint64_t(reinterpret_cast<uintptr_t>(this)) * 0xd6e8feb86659fd93;  // hostile names cannot know it
};

}  // namespace
