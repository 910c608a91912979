// Kineto events from JSON text to columns, without a Python object per event.
//
// Text is read twice while it is warm in the cache. First, 64 bytes at a time, for where its strings begin and end: the
// quotes that no backslash precedes. Then by a parser that leaps from quote to quote and checks all that lies between.
// An event is written only when every byte of it was proven to be JSON and every value is of a plain form. Of anything
// else (damage, a surrogate, a float as an id) the scanner gives no opinion: it says where the event starts, and the
// reference decoder in Python takes over there. So both readers agree by construction, and this one stays short.

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "numbers are read eight bytes at a time, in little-endian order; the Python reader serves this machine"
#endif
#if defined(__x86_64__) || defined(_M_X64)
#include <immintrin.h>
#define TRACEQ_SSE2 1
#elif defined(__aarch64__)
#include <arm_neon.h>
#define TRACEQ_NEON 1
#endif
#if defined(TRACEQ_SSE2) && defined(__GNUC__)
#define TRACEQ_AVX2 __attribute__((target("avx2,bmi,pclmul")))
#endif
#if defined(_MSC_VER)
#include <intrin.h>
#define TRACEQ_INLINE __forceinline
#else
#define TRACEQ_INLINE inline __attribute__((always_inline))
#endif

namespace {

// ---- what is kept of an event -------------------------------------------------------------------------------------

enum Field : int {
    kPh, kName, kCat, kPid, kTid, kTs, kDur, kArgs,
    kExternalId, kExternalId2021, kCorrelation, kDevice, kStream, kBytes, kSize, kDirection, kGrid, kSequence,
    kForwardThread, kCallStack, kCollective, kElementsIn, kElementsOut, kDtype, kGroup, kGroupSize, kRanks,
    kMessageSequence, kDims, kTypes, kLabel, kNumFields,
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
    {"Input type", 10, kTypes}, {"External id", 11, kExternalId}, {"external id", 11, kExternalId2021},
    {"correlation", 11, kCorrelation}, {"Fwd thread id", 13, kForwardThread}, {"In msg nelems", 13, kElementsIn},
    {"Out msg nelems", 14, kElementsOut}, {"Sequence number", 15, kSequence}, {"Collective name", 15, kCollective},
    {"Process Group Name", 18, kGroup}, {"Process Group Ranks", 19, kRanks},
};
constexpr size_t kLongestKey = 19;

// Values of traceq.model.Category that decide which arguments a row has.
enum Category : int8_t { kCpuOp = 1, kAnnotation = 2, kRuntime = 4, kKernel = 5, kMemcpy = 6, kMemset = 7, kSync = 8 };

constexpr int64_t kLimitNs = 8000000000000000000, kLongestNs = 1000000000000000000;
constexpr int kDeepest = 100;
constexpr uint32_t kNoToken = UINT32_MAX;
constexpr size_t kPadding = 64, kStretch = 128 << 10;

inline uint32_t load4(const char* at) { uint32_t word; std::memcpy(&word, at, 4); return word; }
inline uint64_t load8(const char* at) { uint64_t word; std::memcpy(&word, at, 8); return word; }
constexpr uint64_t kZeros = 0x3030303030303030;
inline bool is_space(char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }
inline bool is_digit(char c) { return static_cast<unsigned char>(c - '0') < 10; }

inline int lowest_bit(uint64_t bits) {
#if defined(_MSC_VER)
    unsigned long index;
    _BitScanForward64(&index, bits);
    return static_cast<int>(index);
#else
    return __builtin_ctzll(bits);
#endif
}

inline int popcount(uint64_t bits) {
#if defined(_MSC_VER)
    return int(__popcnt64(bits));
#else
    return __builtin_popcountll(bits);
#endif
}

// ---- first reading: where strings begin and end -------------------------------------------------------------------

struct Marks { uint64_t quotes, escapes, controls, foreign; };  // a bit per byte of a block; foreign = not ASCII

#if defined(TRACEQ_SSE2)
inline Marks marks_baseline(const char* block) {
    Marks marks{};
    for (int i = 0; i < 4; ++i) {
        const __m128i text = _mm_loadu_si128(reinterpret_cast<const __m128i*>(block + 16 * i));
        const auto bits = [i](__m128i hits) { return uint64_t(uint32_t(_mm_movemask_epi8(hits))) << (16 * i); };
        const __m128i last_control = _mm_set1_epi8(0x1f);
        marks.quotes |= bits(_mm_cmpeq_epi8(text, _mm_set1_epi8('"')));
        marks.escapes |= bits(_mm_cmpeq_epi8(text, _mm_set1_epi8('\\')));
        marks.controls |= bits(_mm_cmpeq_epi8(_mm_max_epu8(text, last_control), last_control));
        marks.foreign |= bits(text);
    }
    return marks;
}
#elif defined(TRACEQ_NEON)
inline uint64_t bits_of(uint8x16_t a, uint8x16_t b, uint8x16_t c, uint8x16_t d) {
    const uint8x16_t weights = {1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128};
    const uint8x16_t ab = vpaddq_u8(vandq_u8(a, weights), vandq_u8(b, weights));
    const uint8x16_t cd = vpaddq_u8(vandq_u8(c, weights), vandq_u8(d, weights));
    const uint8x16_t sums = vpaddq_u8(ab, cd);
    return vgetq_lane_u64(vreinterpretq_u64_u8(vpaddq_u8(sums, sums)), 0);
}
inline Marks marks_baseline(const char* block) {
    const auto* at = reinterpret_cast<const uint8_t*>(block);
    const uint8x16_t t[4] = {vld1q_u8(at), vld1q_u8(at + 16), vld1q_u8(at + 32), vld1q_u8(at + 48)};
    const auto where = [&t](auto hit) { return bits_of(hit(t[0]), hit(t[1]), hit(t[2]), hit(t[3])); };
    return {where([](uint8x16_t x) { return vceqq_u8(x, vdupq_n_u8('"')); }),
            where([](uint8x16_t x) { return vceqq_u8(x, vdupq_n_u8('\\')); }),
            where([](uint8x16_t x) { return vcleq_u8(x, vdupq_n_u8(0x1f)); }),
            where([](uint8x16_t x) { return vcgeq_u8(x, vdupq_n_u8(0x80)); })};
}
#else
inline Marks marks_baseline(const char* block) {
    Marks marks{};
    for (int i = 0; i < 64; ++i) {
        const auto byte = static_cast<unsigned char>(block[i]);
        marks.quotes |= uint64_t(byte == '"') << i;
        marks.escapes |= uint64_t(byte == '\\') << i;
        marks.controls |= uint64_t(byte < 0x20) << i;
        marks.foreign |= uint64_t(byte >= 0x80) << i;
    }
    return marks;
}
#endif

inline uint64_t prefix_xor(uint64_t bits) {  // of quotes: a bit for each byte inside a string
    for (int shift = 1; shift < 64; shift *= 2) bits ^= bits << shift;
    return bits;
}

struct Index {
    std::vector<uint32_t> quotes;  // of strings, opening and closing in turn; two of kNoToken end the list
    std::vector<uint32_t> odd;     // blocks with an escape, a control character inside a string, or non-ASCII text
    size_t count = 0;
    bool escaped = false;          // the first byte of the next block follows a backslash
    uint64_t inside = 0;           // all ones where the next block starts inside a string

    void clear() { odd.clear(); count = 0; escaped = false; inside = 0; }

    uint64_t escaped_by(uint64_t backslashes) {  // bits of bytes that a backslash makes literal
        uint64_t found = 0;
        bool literal = escaped;
        for (int i = 0; i < 64; ++i) {
            found |= uint64_t(literal) << i;
            literal = !literal && (backslashes >> i & 1);
        }
        escaped = literal;
        return found;
    }

    template <class PrefixXor> TRACEQ_INLINE void add_block(const Marks& marks, uint32_t at, uint32_t* out, PrefixXor prefix_xor) {
        uint64_t quotes_here = marks.quotes;
        if (marks.escapes || escaped) quotes_here &= ~escaped_by(marks.escapes);
        uint64_t strange = marks.escapes | marks.foreign;
        const uint64_t strings = prefix_xor(quotes_here) ^ inside;
        strange |= marks.controls & strings;
        inside = uint64_t(int64_t(strings) >> 63);
        if (strange) odd.push_back(at);
        out += count;
        count += size_t(popcount(quotes_here));
        while (quotes_here)  // in eights: more may be written than there are, which costs less than to guess the end
            for (int i = 0; i < 8; ++i, quotes_here &= quotes_here - 1) *out++ = at + uint32_t(lowest_bit(quotes_here | uint64_t{1} << 63));
    }
};

#define TRACEQ_INDEX(marks_of, prefix_xor_of)                                                                    \
    for (size_t at = from; at < to; at += 64)                                                      \
        index.add_block(marks_of(base + at), uint32_t(at), index.quotes.data(), prefix_xor_of)

void index_baseline(Index& index, const char* base, size_t from, size_t to) { TRACEQ_INDEX(marks_baseline, prefix_xor); }

#if defined(TRACEQ_AVX2)
TRACEQ_AVX2 inline Marks marks_avx2(const char* block) {
    const __m256i low = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(block));
    const __m256i high = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(block + 32));
    const __m256i quote = _mm256_set1_epi8('"'), escape = _mm256_set1_epi8('\\'), control = _mm256_set1_epi8(0x1f);
#define TRACEQ_BITS(a, b) (uint64_t(uint32_t(_mm256_movemask_epi8(a))) | uint64_t(uint32_t(_mm256_movemask_epi8(b))) << 32)
    return {TRACEQ_BITS(_mm256_cmpeq_epi8(low, quote), _mm256_cmpeq_epi8(high, quote)),
            TRACEQ_BITS(_mm256_cmpeq_epi8(low, escape), _mm256_cmpeq_epi8(high, escape)),
            TRACEQ_BITS(_mm256_cmpeq_epi8(_mm256_max_epu8(low, control), control),
                        _mm256_cmpeq_epi8(_mm256_max_epu8(high, control), control)),
            TRACEQ_BITS(low, high)};
}
TRACEQ_AVX2 inline uint64_t prefix_xor_clmul(uint64_t bits) {
    const __m128i ones = _mm_set1_epi8(char(0xff));
    return uint64_t(_mm_cvtsi128_si64(_mm_clmulepi64_si128(_mm_cvtsi64_si128(int64_t(bits)), ones, 0)));
}
TRACEQ_AVX2 void index_avx2(Index& index, const char* base, size_t from, size_t to) { TRACEQ_INDEX(marks_avx2, prefix_xor_clmul); }
#endif

using Indexer = void (*)(Index&, const char*, size_t, size_t);

Indexer best_indexer() {
#if defined(TRACEQ_AVX2)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi") && __builtin_cpu_supports("pclmul")) return index_avx2;
#endif
    return index_baseline;
}

// ---- second reading: the grammar ----------------------------------------------------------------------------------

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
    struct Bucket { Entry entries[4]; int count; };
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
        if (end && exotic && field != kDims && field != kTypes) return fail(p);
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

// ---- text ---------------------------------------------------------------------------------------------------------

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

// ---- columns ------------------------------------------------------------------------------------------------------

enum Column : int {
    cTs, cDur, cCategory, cName, cCat, cPid, cTid, cGrid, cDevice, cStream, cCorrelation, cExternalId, cBytes,
    cSequence, cForwardThread, kNumColumns,
};
constexpr size_t kWidths[kNumColumns] = {8, 8, 1, 4, 4, 4, 4, 4, 4, 4, 8, 8, 8, 8, 8};
constexpr size_t kSkew = 3 * 64;  // columns that start on pages would share the same few lines of the L1 cache

class Columns {
public:
    Columns() = default;
    Columns(const Columns&) = delete;
    ~Columns() { for (char* block : blocks_) std::free(block); }

    size_t size() const { return size_; }
    void reset() { size_ = capacity_ = 0; }
    void next_row() { if (++size_ > capacity_) reserve(2 * size_ + (64 << 10)); }
    template <class T> void set(Column column, T value) { reinterpret_cast<T*>(data(column))[size_ - 1] = value; }

    void extend(const Py_buffer* parts, size_t rows) {
        if (size_ + rows > capacity_) reserve(2 * (size_ + rows));
        for (int i = 0; i < kNumColumns; ++i)
            if (rows) std::memcpy(data(Column(i)) + size_ * kWidths[i], parts[i].buf, rows * kWidths[i]);
        size_ += rows;
    }

    char* take(int column) {  // a block whose values start at skew(column); the caller frees it
        char* const all = std::exchange(blocks_[column], nullptr);
        char* const fitted = static_cast<char*>(std::realloc(all, skew(column) + size_ * kWidths[column] + 1));
        return fitted ? fitted : all;
    }
    static size_t skew(int column) { return size_t(column) * kSkew; }

private:
    char* data(Column column) { return blocks_[column] + skew(column); }

    // Large blocks grow by remapping pages, not by copying them, and a page that was never written costs nothing.
    void reserve(size_t rows) {
        for (int i = 0; i < kNumColumns; ++i) {
            void* const block = std::realloc(blocks_[i], skew(i) + rows * kWidths[i]);
            if (!block) throw std::bad_alloc();
            blocks_[i] = static_cast<char*>(block);
        }
        capacity_ = rows;
    }

    char* blocks_[kNumColumns] = {};
    size_t size_ = 0, capacity_ = 0;
};

// ---- events to rows -----------------------------------------------------------------------------------------------

struct Rare { int64_t row; std::string name, body; };  // for Python: a thread's name (row -1), or a collective's arguments

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
    std::vector<std::string> by_name;  // categories that take the event's name to tell
    int64_t num_dropped = 0;
    size_t position = 0;  // everything before it is in the columns
    bool busy = false;

    // Reads base[from:to], which kPadding writable bytes follow. `fresh`: an event, or the end of their list, is next.
    Verdict scan(char* base, size_t from, size_t to, bool fresh) {
        std::memset(base + to, 0, kPadding);
        index_.clear();
        token_ = odd_ = 0;
        position = from;
        separated_ |= fresh;
        for (size_t indexed = from;;) {
            indexed = index_stretch(base, indexed, to);
            const Verdict verdict = walk(base, base + to);
            if (verdict != kMore || indexed >= to) return verdict;
        }
    }

private:
    size_t index_stretch(const char* base, size_t from, size_t to) {
        index_.count -= token_;
        if (token_) std::memmove(index_.quotes.data(), index_.quotes.data() + token_, index_.count * sizeof(uint32_t));
        token_ = 0;
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
            if (!separated_) {
                if (*start != ',') return stop(start);
                start = Parser::space(start + 1);
            }
            if (*start != '{') return stop(start);
            position = size_t(start - base);
            separated_ = true;
            const uint32_t* const first = index_.quotes.data() + token_;
            parser.quote = first;
            const char* const end = parser.event(event_, start);
            if (!end) return stop(parser.fault);
            event_.odd = is_odd(size_t(start - base), size_t(end - base));
            if (event_.odd && !is_sound_throughout(base, first, parser.quote)) return kHandOver;
            if (!emit({start, end})) return kHandOver;
            token_ = size_t(parser.quote - index_.quotes.data());
            position = size_t(end - base);
            separated_ = false;
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
        return ph.all() == "\"X\"" ? emit_complete() : true;
    }

    bool emit_metadata(const Value& whole) {
        Text name;
        if (!text_of(kName, name, name_)) return false;
        if (name == "thread_name") rare.push_back({-1, {}, std::string(whole.begin, whole.end)});
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
    bool separated_ = true;  // the comma behind the last event was read, or there is none
    std::string name_, copy_, cat_, pid_, tid_, grid_, stack_;
    std::vector<int8_t> kinds_;
    Strings names_;
    std::unordered_map<uint64_t, int8_t> kinds_by_name_;
    Indexer indexer_ = best_indexer();
};

// ---- for Python ---------------------------------------------------------------------------------------------------

struct ScannerObject { PyObject_HEAD Scanner* scanner; };
struct ColumnObject { PyObject_HEAD char* block; size_t skew, size; };

PyTypeObject* column_type = nullptr;

// Runs what may throw; a C++ fault becomes a Python one.
template <class Body> PyObject* guarded(Body body) {
    try {
        return body();
    } catch (const std::bad_alloc&) {
        return PyErr_NoMemory();
    } catch (const std::exception& fault) {
        PyErr_SetString(PyExc_RuntimeError, fault.what());
        return nullptr;
    }
}

template <class Object> Object* allocate(PyTypeObject* type) {
    const auto make = reinterpret_cast<allocfunc>(PyType_GetSlot(type, Py_tp_alloc));
    return reinterpret_cast<Object*>(make(type, 0));
}

void release(PyObject* self) {
    PyTypeObject* const type = Py_TYPE(self);
    reinterpret_cast<freefunc>(PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(reinterpret_cast<PyObject*>(type));
}

void column_dealloc(PyObject* self) {
    std::free(reinterpret_cast<ColumnObject*>(self)->block);
    release(self);
}

int column_buffer(PyObject* self, Py_buffer* view, int flags) {
    const auto* column = reinterpret_cast<ColumnObject*>(self);
    return PyBuffer_FillInfo(view, self, column->block + column->skew, Py_ssize_t(column->size), 0, flags);
}

PyObject* scanner_new(PyTypeObject* type, PyObject* args, PyObject*) {
    PyObject *categorise, *by_name;
    if (!PyArg_ParseTuple(args, "OO!", &categorise, &PyTuple_Type, &by_name)) return nullptr;
    return guarded([&]() -> PyObject* {
        auto scanner = std::make_unique<Scanner>(categorise);
        for (Py_ssize_t i = 0; i < PyTuple_Size(by_name); ++i) {
            const char* const text = PyUnicode_AsUTF8AndSize(PyTuple_GetItem(by_name, i), nullptr);
            if (!text) return nullptr;
            scanner->by_name.emplace_back(text);
        }
        auto* const self = allocate<ScannerObject>(type);
        if (!self) return nullptr;
        Py_INCREF(categorise);
        self->scanner = scanner.release();
        return reinterpret_cast<PyObject*>(self);
    });
}

void scanner_dealloc(PyObject* self) {
    if (Scanner* const scanner = reinterpret_cast<ScannerObject*>(self)->scanner) {
        Py_DECREF(scanner->categorise());
        delete scanner;
    }
    release(self);
}

Scanner& of(PyObject* self) { return *reinterpret_cast<ScannerObject*>(self)->scanner; }

PyObject* scan(PyObject* self, PyObject* args) {
    Py_buffer text;
    Py_ssize_t from, to;
    int fresh;
    if (!PyArg_ParseTuple(args, "w*nnp", &text, &from, &to, &fresh)) return nullptr;
    Scanner& scanner = of(self);
    const bool fits = from >= 0 && from <= to && to + Py_ssize_t(kPadding) <= text.len && text.len < Py_ssize_t(UINT32_MAX);
    PyObject* const verdict = guarded([&]() -> PyObject* {
        if (!fits || scanner.busy) throw std::runtime_error(fits ? "the scanner is at work" : "no room behind the text");
        scanner.busy = true;
        PyThreadState* const state = PyEval_SaveThread();
        Verdict found = kMore;
        bool out_of_memory = false;
        try {
            found = scanner.scan(static_cast<char*>(text.buf), size_t(from), size_t(to), fresh != 0);
        } catch (const std::bad_alloc&) {
            out_of_memory = true;
        }
        PyEval_RestoreThread(state);
        scanner.busy = false;
        if (out_of_memory) throw std::bad_alloc();
        return Py_BuildValue("in", int(found), Py_ssize_t(scanner.position));
    });
    PyBuffer_Release(&text);
    return verdict;
}

template <class Items, class Make> PyObject* list_of(const Items& items, Make make) {
    PyObject* const list = PyList_New(0);
    for (size_t i = 0; list && i < items.size(); ++i) {
        PyObject* const item = make(items[i]);
        if (!item || PyList_Append(list, item) < 0) { Py_XDECREF(item); Py_DECREF(list); return nullptr; }
        Py_DECREF(item);
    }
    return list;
}

PyObject* take_rare(PyObject* self, PyObject*) {
    const std::vector<Rare> rare = std::exchange(of(self).rare, {});
    return list_of(rare, [](const Rare& each) {
        return Py_BuildValue("Ls#y#", static_cast<long long>(each.row), each.name.data(), Py_ssize_t(each.name.size()),
                             each.body.data(), Py_ssize_t(each.body.size()));
    });
}

PyObject* intern(PyObject* self, PyObject* texts) {
    return guarded([&]() -> PyObject* {
        std::vector<int32_t> ids;
        for (Py_ssize_t i = 0; i < PyList_Size(texts); ++i) {
            char* text;
            Py_ssize_t size;
            if (PyBytes_AsStringAndSize(PyList_GetItem(texts, i), &text, &size) < 0) return nullptr;
            ids.push_back(of(self).strings.intern({text, size_t(size)}));
        }
        return PyErr_Occurred() ? nullptr : list_of(ids, [](int32_t id) { return PyLong_FromLong(id); });
    });
}

PyObject* extend(PyObject* self, PyObject* arrays) {
    Py_buffer parts[kNumColumns];
    int count = 0;
    const bool fits = PyList_Check(arrays) && PyList_Size(arrays) == kNumColumns;
    while (fits && count < kNumColumns && !PyObject_GetBuffer(PyList_GetItem(arrays, count), &parts[count], PyBUF_SIMPLE)) ++count;
    PyObject* const done = guarded([&]() -> PyObject* {
        if (PyErr_Occurred()) return nullptr;
        const size_t rows = fits ? size_t(parts[0].len) / kWidths[0] : 0;
        for (int i = 0; i < count; ++i)
            if (size_t(parts[i].len) != rows * kWidths[i]) throw std::runtime_error("columns of different lengths");
        if (!fits) throw std::runtime_error("not a list of all columns");
        of(self).columns.extend(parts, rows);
        return Py_BuildValue("");
    });
    while (count > 0) PyBuffer_Release(&parts[--count]);
    return done;
}

PyObject* finish(PyObject* self, PyObject*) {
    Scanner& scanner = of(self);
    PyObject* const columns = PyList_New(0);
    for (int i = 0; columns && i < kNumColumns; ++i) {
        auto* const column = allocate<ColumnObject>(column_type);
        if (!column) { Py_DECREF(columns); return nullptr; }
        column->skew = Columns::skew(i);
        column->size = scanner.columns.size() * kWidths[i];
        column->block = scanner.columns.take(i);
        const int failed = PyList_Append(columns, reinterpret_cast<PyObject*>(column));
        Py_DECREF(reinterpret_cast<PyObject*>(column));
        if (failed) { Py_DECREF(columns); return nullptr; }
    }
    scanner.columns.reset();
    PyObject* const strings = list_of(scanner.strings, [](Text text) {
        return PyUnicode_DecodeUTF8(text.at, Py_ssize_t(text.size), "surrogatepass");
    });
    PyObject* const stacks = list_of(scanner.stacks, [](const std::pair<int64_t, int32_t>& each) {
        return Py_BuildValue("Li", static_cast<long long>(each.first), int(each.second));
    });
    return columns && strings && stacks ? Py_BuildValue("NNN", columns, strings, stacks) : nullptr;
}

PyObject* num_rows(PyObject* self, void*) { return PyLong_FromSize_t(of(self).columns.size()); }
PyObject* num_dropped(PyObject* self, void*) { return PyLong_FromLongLong(of(self).num_dropped); }

PyMethodDef scanner_methods[] = {
    {"scan", scan, METH_VARARGS, "scan(buffer, start, stop, fresh) -> (verdict, position)"},
    {"take_rare", take_rare, METH_NOARGS, "take_rare() -> [(row, name, json)]"},
    {"intern", intern, METH_O, "intern([bytes]) -> [id]"},
    {"extend", extend, METH_O, "extend([column]) -> None"},
    {"finish", finish, METH_NOARGS, "finish() -> (columns, strings, [(row, stack)])"},
    {nullptr, nullptr, 0, nullptr},
};
PyGetSetDef scanner_properties[] = {
    {"num_rows", num_rows, nullptr, "Rows so far.", nullptr},
    {"num_dropped", num_dropped, nullptr, "Complete events without a usable time.", nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr},
};

#define TRACEQ_SLOT(function) reinterpret_cast<void*>(function)
PyType_Slot scanner_slots[] = {
    {Py_tp_new, TRACEQ_SLOT(scanner_new)}, {Py_tp_dealloc, TRACEQ_SLOT(scanner_dealloc)},
    {Py_tp_methods, scanner_methods}, {Py_tp_getset, scanner_properties}, {0, nullptr},
};
PyType_Slot column_slots[] = {
    {Py_tp_dealloc, TRACEQ_SLOT(column_dealloc)}, {Py_bf_getbuffer, TRACEQ_SLOT(column_buffer)}, {0, nullptr},
};
PyType_Spec scanner_spec = {"traceq.kineto._scan.Scanner", sizeof(ScannerObject), 0, Py_TPFLAGS_DEFAULT, scanner_slots};
PyType_Spec column_spec = {
    "traceq.kineto._scan.Column", sizeof(ColumnObject), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, column_slots};

PyModuleDef module = {PyModuleDef_HEAD_INIT, "_scan", "Kineto events to columns.", -1, nullptr, nullptr, nullptr, nullptr, nullptr};

}  // namespace

PyMODINIT_FUNC PyInit__scan() {
    PyObject* const self = PyModule_Create(&module);
    PyObject* const scanner = PyType_FromSpec(&scanner_spec);
    column_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&column_spec));
    if (!self || !scanner || !column_type || PyModule_AddObject(self, "Scanner", scanner) < 0) return nullptr;
    PyModule_AddIntConstant(self, "MORE", kMore);
    PyModule_AddIntConstant(self, "CLOSED", kClosed);
    PyModule_AddIntConstant(self, "HAND_OVER", kHandOver);
    PyModule_AddIntConstant(self, "PADDING", kPadding);
    return self;
}
