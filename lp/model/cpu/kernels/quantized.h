// Products of rows with a weight of codes of 4 to 8 bits, which are decoded while they are multiplied.
//
// A number of the weight is scale * step * value(code) - minimum * minimum_step. quantized.py writes a struct for each
// format. Codes are packed in panels of PANEL outputs. The 32 inputs of a group follow one another, and each of its
// cache lines has four bytes of each output. Codes of 4 and 8 bits fill the four bytes; inputs 2i are in the lower half
// and inputs 2i + 1 in the upper one. Of 5 and 6 bits, as many whole codes follow one another as fit, and what is left
// of the lines of a step has the bits of its last codes. Where pairs are multiplied, codes of up to 6 bits fill the
// lines: first those with their LOW bits, then those with the HIGH bits above them; signed codes of 8 bits lie input by
// input. Codes of 8 bits may be split: then the upper halves of all codes lie before the lower ones, those of two lines in
// one, so that the upper ones are read as one stream. Behind all codes lie, panel by panel, scales and minima, and then
// steps.
//
// Codes are multiplied with the rows as they are; the sum of the inputs that share a step is then scaled and added to
// the row's. For few rows they are decoded in registers, for more rows once into the first cache. Every sum is of the
// same numbers in the same order, whatever the number of rows, so a row's results do not depend on the others.
//
// K inputs, N outputs
#pragma once

#include <algorithm>
#include <vector>

#include "experts.h"

#define GROUP 32  // inputs whose codes lie together
// Rows that go through panels together, where codes are decoded in registers and where they are decoded before, and the
// panels through which they go together there.
#define MOST_TILE_ROWS (LANES == 16 ? 9 : LANES == 8 ? 5 : 2)
#define MOST_DECODED_ROWS (LANES == 16 ? 9 : LANES == 8 ? 6 : 4)
#define DECODED_PANELS (LANES == 16 ? 2 : 1)
// Rows whose inputs are prepared together, and the most numbers of them; groups that are decoded together; how many
// groups ahead codes are fetched.
#define QUANTIZED_ROWS_AT_ONCE (LANES == 16 ? 64 : 128)
#define MOST_PREPARED (LANES == 16 ? 1 << 15 : 1 << 16)
#define DECODED_GROUPS 8
#define GROUPS_AHEAD 8
#define SIGN 128  // a signed code of 8 bits is that of the format less this
#define LOWER_HALVES 0x0F0F0F0Fu  // of codes of 8 bits

// Four bytes of as many outputs as a vector has lanes.
typedef uint32_t Codes __attribute__((vector_size(LANES * 4), aligned(4), may_alias));
typedef uint16_t Words __attribute__((vector_size(LANES * 4), aligned(2), may_alias));
typedef uint8_t Bytes __attribute__((vector_size(LANES), aligned(1), may_alias));
typedef int8_t SignedBytes __attribute__((vector_size(LANES), aligned(1), may_alias));

enum ScaleFormat { HALVES, FLOATS, EXPONENTS };
enum StepFormat { NO_STEPS, UNSIGNED_STEPS, SIGNED_STEPS };

// Where a weight's parts lie. F: the format.
template <class F>
struct Quantized {
    static constexpr int PARTS = GROUP / F::STEP_GROUP;  // of a group, each with a step of its own
    static constexpr bool IS_LINEAR = F::NUM_VALUES == 0;  // the value of a code is the code less ZERO
    static constexpr bool BY_PAIRS = HAS_PAIRS && F::NUM_VALUES <= 16;
    static constexpr bool BY_BYTES = BY_PAIRS && F::LOW == 8 && !F::IS_SPLIT;
    static constexpr bool HAS_MINIMUM = F::HAS_MINIMA || (IS_LINEAR && F::ZERO != 0 && !BY_PAIRS);
    static constexpr long GROUP_BYTES = (F::LOW + F::HIGH) * PANEL * 4;
    static constexpr long GROUP_STRIDE = F::IS_SPLIT ? GROUP_BYTES / 2 : GROUP_BYTES;  // to the next group
    static constexpr long SCALE_BYTES = F::SCALES == HALVES ? 2 : F::SCALES == FLOATS ? 4 : 1;
    static constexpr long SPAN_BYTES = PANEL * SCALE_BYTES * (F::HAS_MINIMA ? 2 : 1);
    static constexpr long NUM_STEPS = F::STEPS == NO_STEPS ? 0 : PARTS;
    static constexpr long STEP_BYTES = PANEL * (NUM_STEPS + (F::HAS_MINIMUM_STEPS ? 1 : 0));
    // Codes of an output that lie whole in four bytes, one after the other; lines of a step, and its last codes, which
    // are put together of the bits that are left of these lines.
    static constexpr bool IS_WHOLE = F::HIGH > 0 && !BY_PAIRS;
    static constexpr int BITS = F::LOW + F::HIGH, IN_LINE = 32 / (IS_WHOLE ? BITS : F::LOW), LEFT = 32 % BITS;
    static constexpr int LINES = F::STEP_GROUP * BITS / 32, REST = IS_WHOLE ? F::STEP_GROUP - LINES * IN_LINE : 0;
    static_assert(!IS_WHOLE || REST * BITS == LINES * LEFT, "the last codes take all bits that are left");
    // The most rows for which codes are decoded in registers, anew for each tile of rows; for more rows they are decoded
    // once into the first cache. Pairs of values of 8 bits and of 5 take most instructions.
    static constexpr int MOST_OF_PAIRS = F::LOW == 8 || F::HIGH == 1 ? 12 : QUANTIZED_ROWS_AT_ONCE;
    static constexpr int MOST_IN_REGISTERS = LANES == 16 ? (BY_PAIRS ? MOST_OF_PAIRS : 32) : LANES == 8 ? 16 : 2;
    // Vectors of PANEL numbers, or of PANEL pairs, of a decoded group.
    static constexpr long DECODED = BY_PAIRS ? GROUP / 2 : GROUP;
    // From one decoded panel to the next one.
    static constexpr long DECODED_STRIDE = DECODED_GROUPS * DECODED * PANEL;
    static_assert(F::STEP_GROUP % LANES == 0, "inputs that share a step fill vectors");
    static_assert(PARTS == 1 || !F::HAS_MINIMA, "minima are for 32 inputs");
    static_assert(!F::HIGH || IS_LINEAR, "values are found by one part of a code");
    static_assert(!F::IS_SPLIT || (IS_LINEAR && F::LOW == 8 && F::ZERO == SIGN), "halves of signed numbers");

    const uint8_t* weight;
    long num_inputs, num_outputs, span_groups;  // groups that share a scale

    long num_panels() const { return (num_outputs + PANEL - 1) / PANEL; }
    long num_groups() const { return num_inputs / GROUP; }
    long num_spans() const { return num_groups() / span_groups; }
    // To the codes of the next panel.
    long panel_stride() const { return num_groups() * GROUP_STRIDE; }
    const uint8_t* codes(long panel, long group) const { return weight + panel * panel_stride() + group * GROUP_STRIDE; }
    // From the upper halves of a group's codes to the lower ones.
    long below() const { return F::IS_SPLIT ? num_panels() * panel_stride() : 0; }
    // From a group's first line in memory to another one.
    static long to_line(int line, long below) {
        constexpr int UPPER = GROUP_STRIDE / (PANEL * 4);
        return line < UPPER ? line * PANEL * 4 : below + (line - UPPER) * PANEL * 4;
    }
    const uint8_t* scales(long panel, long span) const {
        return weight + num_panels() * num_groups() * GROUP_BYTES + (panel * num_spans() + span) * SPAN_BYTES;
    }
    const uint8_t* steps(long panel, long group) const {
        return scales(num_panels(), 0) + (panel * num_groups() + group) * STEP_BYTES;
    }
    long num_bytes() const { return steps(num_panels(), 0) - weight; }
};

// As many bytes as a vector has lanes, as whole numbers. The compiler would convert eight bytes one by one.
static inline Integers widen(const uint8_t* from, bool is_signed) {
#if defined(__AVX512F__)
    const __m128i bytes = _mm_loadu_si128((const __m128i*)from);
    return (Integers)(is_signed ? _mm512_cvtepi8_epi32(bytes) : _mm512_cvtepu8_epi32(bytes));
#elif defined(__AVX2__)
    const __m128i bytes = _mm_loadl_epi64((const __m128i*)from);
    return (Integers)(is_signed ? _mm256_cvtepi8_epi32(bytes) : _mm256_cvtepu8_epi32(bytes));
#else
    return is_signed ? __builtin_convertvector(*(const SignedBytes*)from, Integers)
                     : __builtin_convertvector(*(const Bytes*)from, Integers);
#endif
}

template <int FORMAT>
static inline Vector load_scales(const uint8_t* from) {
    if constexpr (FORMAT == FLOATS) return load((const float*)from);
    if constexpr (FORMAT == EXPONENTS) return (Vector)(widen(from, false) << 23);
    return load_halves(from);
}

template <int FORMAT>
static inline Vector load_steps(const uint8_t* from) {
    return __builtin_convertvector(widen(from, FORMAT == SIGNED_STEPS), Vector);
}

// The lowest bit of an input's code, of so many bits, where inputs 2i and 2i + 1 are in the two halves of four bytes.
static constexpr int bit_in_half(int bits, long input) {
    return (int)(input % 2 * 16 + input / 2 % (16 / bits) * bits);
}

// The lowest bit of the code of an input of a group, in the four bytes from which it is decoded.
template <class F>
static constexpr int first_bit(long input) {
    using Q = Quantized<F>;
    if (!Q::IS_WHOLE) return bit_in_half(F::LOW, input);
    const int at = input % F::STEP_GROUP, whole = Q::LINES * Q::IN_LINE;
    return (at < whole ? at % Q::IN_LINE : at - whole) * Q::BITS;
}

// The power of two that a code's value is read with, whose lowest bit is `bit`. A code is read where it lies in its four
// bytes; only the uppermost one is shifted.
template <class F>
static constexpr int read_at(int bit) {
    return bit == 32 - Quantized<F>::BITS || !Quantized<F>::IS_LINEAR ? 0 : bit;
}

// Divides the inputs by the powers of two that their codes are read with: `inputs` [rows][count]. sums: of the inputs that
// share a step, [rows][count / STEP_GROUP].
template <class F>
static void prepare(const half_t* x, long x_stride, long rows, long count, float* inputs, float* sums) {
    using Q = Quantized<F>;
    float factors[GROUP];
    for (int k = 0; k < GROUP; k++) factors[k] = 1.0f / (float)(1u << read_at<F>(first_bit<F>(k)));
    for (long r = 0; r < rows; r++) {
        const half_t* from = x + r * x_stride;
        float *to = inputs + r * count, *own_sums = sums + r * count / F::STEP_GROUP;
        for (long k = 0; k < count; k += GROUP)
#pragma GCC unroll 2
            for (int p = 0; p < Q::PARTS; p++) {
                Vector sum = {};
#pragma GCC unroll 8
                for (int i = p * F::STEP_GROUP; i < (p + 1) * F::STEP_GROUP; i += LANES) {
                    const Vector own = load_numbers(from + k + i);
                    sum += own;
                    if constexpr (!Q::BY_PAIRS) store(to + k + i, own * load(factors + i));
                }
                *own_sums++ = sum_of(sum);
            }
    }
}

// The values of the codes whose lowest bit is `bit`, times 2^read_at(bit).
template <class F>
static inline Vector decode(Codes line, int bit) {
    constexpr uint32_t MASK = (1u << Quantized<F>::BITS) - 1;
    if constexpr (!Quantized<F>::IS_LINEAR) {
        const Codes code = line >> bit & MASK;
#if defined(__AVX512F__)
        if constexpr (F::NUM_VALUES == 16)
            return (Vector)_mm512_permutexvar_ps((__m512i)code, (__m512)load(F::CODEBOOK));
#elif defined(__AVX2__)
        if constexpr (F::NUM_VALUES == 16) {
            const __m256 low = _mm256_permutevar8x32_ps((__m256)load(F::CODEBOOK), (__m256i)code);
            const __m256 high = _mm256_permutevar8x32_ps((__m256)load(F::CODEBOOK + LANES), (__m256i)code);
            return (Vector)_mm256_blendv_ps(low, high, (__m256)(code << 28));
        }
#endif
        Vector values;
        for (int l = 0; l < LANES; l++) values[l] = F::CODEBOOK[code[l]];
        return values;
    }
    const Codes code = read_at<F>(bit) == bit ? line & MASK << bit : line >> bit;
    return __builtin_convertvector((Integers)code, Vector);
}

// Some rows: prepared inputs, or in pairs of bfloat16 as they are, from a group's first one on. strides: of rows.
struct Inputs {
    const float *numbers, *sums;
    long stride, sums_stride;
    const half_t* halves;
    long halves_stride;
};

// Where codes lie: of a group, and from its upper halves to the lower ones. panel_stride: to the same group of the next
// panel.
struct GroupCodes {
    const uint8_t* at;
    long panel_stride, below;
};

// Four bytes of the outputs of vector v, of which each of some panels has VECTORS, in a line of codes.
static inline Codes load_stored(const uint8_t* codes, long panel_stride, int v, int line) {
    return *(const Codes*)(codes + v / VECTORS * panel_stride + (line * PANEL + v % VECTORS * LANES) * 4);
}

// Puts the lower halves of two numbers' bytes together as bytes, and the upper ones.
template <class T>
static inline T join_lower(T first, T second) {
    return (first << 4 & ~LOWER_HALVES) | (second & LOWER_HALVES);
}

template <class T>
static inline T join_upper(T first, T second) {
    return (first & ~LOWER_HALVES) | (second >> 4 & LOWER_HALVES);
}

// The same with the halves of codes put together.
template <class F>
__attribute__((always_inline)) static inline Codes load_line(const GroupCodes& codes, int v, int line) {
    if constexpr (!F::IS_SPLIT) return load_stored(codes.at, codes.panel_stride, v, line);
    const Codes upper = load_stored(codes.at, codes.panel_stride, v, line / 2);
    const Codes lower = load_stored(codes.at + codes.below, codes.panel_stride, v, line / 2);
    return line % 2 == 0 ? join_lower(upper, lower) : join_upper(upper, lower);
}

// Calls use(k, values) for the inputs of a group that share a step, in their order: the values of input k, in the vectors
// of COLUMNS panels.
template <class F, int COLUMNS, class Use>
__attribute__((always_inline)) static inline void decode_codes(GroupCodes codes, int first, Use use) {
    using Q = Quantized<F>;
    constexpr int WIDTH = COLUMNS * VECTORS, AT_ONCE = F::IS_SPLIT ? 2 : 1;
    codes.at += first / F::STEP_GROUP * Q::LINES * PANEL * 4;
#pragma GCC unroll 1
    for (int some = 0; some < Q::LINES; some += AT_ONCE)
#pragma GCC unroll 2
        for (int line = some; line < some + AT_ONCE; line++) {
            Codes words[WIDTH];
#pragma GCC unroll 8
            for (int v = 0; v < WIDTH; v++) words[v] = load_line<F>(codes, v, line);
#pragma GCC unroll 32
            for (int k = 0; k < Q::IN_LINE; k++) {
                Vector values[WIDTH];
#pragma GCC unroll 8
                for (int v = 0; v < WIDTH; v++) values[v] = decode<F>(words[v], first_bit<F>(k));
                use(first + line * Q::IN_LINE + k, values);
            }
        }
    if constexpr (Q::REST > 0) {
        Codes words[WIDTH];
#pragma GCC unroll 8
        for (int v = 0; v < WIDTH; v++) {
            words[v] = load_line<F>(codes, v, 0) >> (32 - Q::LEFT);
#pragma GCC unroll 8
            for (int line = 1; line < Q::LINES; line++)
                words[v] |= load_line<F>(codes, v, line) >> (32 - Q::LEFT) << line * Q::LEFT;
        }
#pragma GCC unroll 8
        for (int k = 0; k < Q::REST; k++) {
            Vector values[WIDTH];
#pragma GCC unroll 8
            for (int v = 0; v < WIDTH; v++) values[v] = decode<F>(words[v], k * Q::BITS);
            use(first + Q::LINES * Q::IN_LINE + k, values);
        }
    }
}

// Adds the products of the inputs from `first` on that share a step with the codes of COLUMNS panels. decoded: the values
// of the group's codes, [GROUP][PANEL] of each panel, or null; then they are decoded here.
template <class F, int ROWS, int COLUMNS, bool IS_DECODED>
__attribute__((always_inline)) static inline void add_codes(const GroupCodes& codes, const float* decoded,
                                                            const float* inputs, long stride, int first,
                                                            Vector (&part)[ROWS][COLUMNS * VECTORS]) {
    constexpr int WIDTH = COLUMNS * VECTORS;
    const auto add = [&](int k, const Vector(&values)[WIDTH]) __attribute__((always_inline)) {
#pragma GCC unroll 12
        for (int r = 0; r < ROWS; r++) {
            const Vector input = broadcast(inputs[r * stride + k]);
#pragma GCC unroll 8
            for (int v = 0; v < WIDTH; v++) part[r][v] = multiply_add(input, values[v], part[r][v]);
        }
    };
    if constexpr (IS_DECODED) {
#pragma GCC unroll 4
        for (int k = first; k < first + F::STEP_GROUP; k++) {
            Vector values[WIDTH];
#pragma GCC unroll 8
            for (int v = 0; v < WIDTH; v++)
                values[v] = load(decoded + v / VECTORS * Quantized<F>::DECODED_STRIDE + k * PANEL + v % VECTORS * LANES);
            add(k, values);
        }
    } else {
        decode_codes<F, COLUMNS>(codes, first, add);
    }
}

#if HAS_PAIRS
// The values of the codes of 8 bits of two inputs, which are whole numbers of up to 8 bits: bfloat16 has all of them.
template <class F>
static inline Words values_of_bytes(const uint8_t* codes) {
    const auto values = [&](int input) __attribute__((always_inline)) {
        const Vector less = __builtin_convertvector(widen(codes + input * PANEL, true), Vector);
        return (Codes)(F::ZERO == SIGN ? less : less + (SIGN - F::ZERO));
    };
    return (Words)(values(0) >> 16 | (values(1) & 0xFFFF0000u));
}

// The two bytes of each whole number from -SIGN to SIGN - 1 in bfloat16.
struct SignedHalves {
    alignas(64) uint8_t lower[256], upper[256];

    constexpr SignedHalves() : lower(), upper() {
        for (int code = 0; code < 256; code++) {
            int number = code < SIGN ? SIGN - code : code - SIGN, exponent = 127 + 7;
            if (number == 0) continue;
            for (; number < 128; exponent--) number *= 2;
            lower[code] = (uint8_t)((exponent & 1) << 7 | (number & 127));
            upper[code] = (uint8_t)((code < SIGN ? 128 : 0) | exponent >> 1);
        }
    }
};

// The values of a line of codes of 8 bits, two pairs of inputs. BY_TABLES: they are looked up if the processor can,
// which takes fewer instructions and eight more registers.
template <bool BY_TABLES>
__attribute__((always_inline)) static inline void values_of_line(Codes line, Words (&pairs)[2]) {
#if defined(__AVX512VBMI__)
    if constexpr (BY_TABLES) {
        static constexpr SignedHalves HALVES_OF;
        const __m512i codes = (__m512i)line;
        const auto look_up = [&](const uint8_t* table) __attribute__((always_inline)) {
            const auto part = [&](int at) __attribute__((always_inline)) {
                return _mm512_permutex2var_epi8(_mm512_load_si512(table + at), codes, _mm512_load_si512(table + at + 64));
            };
            return _mm512_mask_blend_epi8(_mm512_movepi8_mask(codes), part(0), part(128));
        };
        const __m512i lower = look_up(HALVES_OF.lower), upper = look_up(HALVES_OF.upper);
        const __m512i mask = _mm512_set1_epi16(0xFF);  // where a bit is 1, the first of two numbers is taken
        pairs[0] = (Words)_mm512_ternarylogic_epi32(mask, lower, _mm512_slli_epi16(upper, 8), 0xCA);
        pairs[1] = (Words)_mm512_ternarylogic_epi32(mask, _mm512_srli_epi16(lower, 8), upper, 0xCA);
        return;
    }
#endif
    const Integers codes = (Integers)(line ^ 0x80808080u);  // signed bytes
    for (int i = 0; i < 2; i++) {
        const Vector even = __builtin_convertvector(codes << (24 - 8 * i) >> 24, Vector);
        const Vector odd = __builtin_convertvector(codes << (8 - 8 * i) >> 24, Vector);
        pairs[i] = (Words)((Codes)even >> 16 | ((Codes)odd & 0xFFFF0000u));
    }
}

// The values of codes of up to 6 bits, which are the lowest ones of each half of four bytes.
template <class F>
static inline Words values_of(Words codes) {
    const __m512i lower = _mm512_load_si512(F::WORDS);
    if constexpr (F::HIGH < 2) return (Words)_mm512_permutexvar_epi16((__m512i)codes, lower);
    return (Words)_mm512_permutex2var_epi16(lower, (__m512i)codes, _mm512_load_si512(F::WORDS + 32));
}

// Calls use(pair, values) for the pairs of a group's inputs that share a step, in their order.
template <class F, int COLUMNS, bool BY_TABLES, class Use>
__attribute__((always_inline)) static inline void decode_pairs(const GroupCodes& codes, int first, Use use) {
    constexpr int WIDTH = COLUMNS * VECTORS;
    if constexpr (F::IS_SPLIT) {
#pragma GCC unroll 1
        for (int some = first / 4; some < (first + F::STEP_GROUP) / 4; some += 2)
#pragma GCC unroll 2
            for (int line = some; line < some + 2; line++) {
                Words values[WIDTH][2], own[WIDTH];
#pragma GCC unroll 8
                for (int v = 0; v < WIDTH; v++) values_of_line<BY_TABLES>(load_line<F>(codes, v, line), values[v]);
#pragma GCC unroll 2
                for (int i = 0; i < 2; i++) {
#pragma GCC unroll 8
                    for (int v = 0; v < WIDTH; v++) own[v] = values[v][i];
                    use(2 * line + i, own);
                }
            }
        return;
    }
    if constexpr (Quantized<F>::BY_BYTES) {
#pragma GCC unroll 2
        for (int pair = first / 2; pair < (first + F::STEP_GROUP) / 2; pair++) {
            Words values[WIDTH];
#pragma GCC unroll 8
            for (int v = 0; v < WIDTH; v++)
                values[v] = values_of_bytes<F>(codes.at + v * codes.panel_stride + 2 * pair * PANEL);
            use(pair, values);
        }
        return;
    }
    constexpr int PAIRS = 4, IN_LINE = 2 * PAIRS, HIGH = F::HIGH ? F::HIGH : 1;
    constexpr int PAIRS_ABOVE = 16 / HIGH;  // pairs whose upper bits share a line
#pragma GCC unroll 1
    for (int line = first / IN_LINE; line < (first + F::STEP_GROUP) / IN_LINE; line++) {
        const int pair = line * PAIRS;
        Words words[WIDTH], above[WIDTH];
#pragma GCC unroll 8
        for (int v = 0; v < WIDTH; v++) {
            words[v] = (Words)load_line<F>(codes, v, line);
            if constexpr (F::HIGH > 0)
                above[v] = (Words)load_line<F>(codes, v, F::LOW + pair / PAIRS_ABOVE) >> pair % PAIRS_ABOVE * HIGH;
        }
#pragma GCC unroll 4
        for (int i = 0; i < PAIRS; i++) {
            Words values[WIDTH];
#pragma GCC unroll 8
            for (int v = 0; v < WIDTH; v++) {
                Words code = words[v] >> 4 * i;
                if constexpr (F::HIGH > 0) {
                    const int left = 4 - i * HIGH;
                    const Words upper = left < 0 ? above[v] >> -left : above[v] << left;
                    const __m512i lowest = _mm512_set1_epi16(15);  // where a bit is 1, that of `code` is taken
                    code = (Words)_mm512_ternarylogic_epi32(lowest, (__m512i)code, (__m512i)upper, 0xCA);
                }
                values[v] = values_of<F>(code);
            }
            use(pair + i, values);
        }
    }
}

template <class F, int ROWS, int COLUMNS, bool IS_DECODED>
__attribute__((always_inline)) static inline void add_pairs(const GroupCodes& codes, const float* decoded,
                                                            const half_t* inputs, long stride, int first,
                                                            Vector (&part)[ROWS][COLUMNS * VECTORS]) {
    constexpr int WIDTH = COLUMNS * VECTORS;
    const auto add = [&](int pair, const Words(&values)[WIDTH]) __attribute__((always_inline)) {
#pragma GCC unroll 12
        for (int r = 0; r < ROWS; r++) {
            int two;
            memcpy(&two, inputs + r * stride + 2 * pair, 4);
            const __m512bh input = (__m512bh)_mm512_set1_epi32(two);
#pragma GCC unroll 8
            for (int v = 0; v < WIDTH; v++)
                part[r][v] = (Vector)_mm512_dpbf16_ps((__m512)part[r][v], input, (__m512bh)values[v]);
        }
    };
    if constexpr (IS_DECODED) {
#pragma GCC unroll 4
        for (int pair = first / 2; pair < (first + F::STEP_GROUP) / 2; pair++) {
            Words values[WIDTH];
#pragma GCC unroll 8
            for (int v = 0; v < WIDTH; v++)
                values[v] = *(const Words*)(decoded + v * Quantized<F>::DECODED_STRIDE + pair * PANEL);
            add(pair, values);
        }
    } else {
        decode_pairs<F, COLUMNS, ROWS * COLUMNS <= 8>(codes, first, add);
    }
}
#endif

// Decodes the codes of groups [first, last) of a panel, as add_codes and add_pairs read them: [groups][DECODED][PANEL].
// ahead: the codes of as many groups that are decoded next, which are fetched meanwhile.
template <class F>
static void decode_groups(const Quantized<F>& weight, long panel, long first, long last, const uint8_t* ahead,
                          float* out) {
    using Q = Quantized<F>;
    for (long group = first; group < last; group++, out += Q::DECODED * PANEL, ahead += Q::GROUP_STRIDE) {
        const GroupCodes codes = {weight.codes(panel, group), 0, weight.below()};
#pragma GCC unroll 8
        for (int line = 0; line < Q::BITS; line++) __builtin_prefetch(ahead + Q::to_line(line, codes.below), 0, 2);
        for (int at = 0; at < GROUP; at += F::STEP_GROUP) {
#if HAS_PAIRS
            if constexpr (Q::BY_PAIRS)
                decode_pairs<F, 1, true>(codes, at,
                                   [out](int pair, const Words(&values)[1]) { *(Words*)(out + pair * PANEL) = values[0]; });
#endif
            if constexpr (!Q::BY_PAIRS)
                decode_codes<F, 1>(codes, at, [out](int k, const Vector(&values)[VECTORS]) {
                    for (int v = 0; v < VECTORS; v++) store(out + k * PANEL + v * LANES, values[v]);
                });
        }
    }
}

// Adds the products of groups [first, last) of COLUMNS panels with ROWS rows to `sums` [ROWS][COLUMNS * PANEL]. decoded: of
// these groups, DECODED_STRIDE apart from panel to panel, or null. Where it is inlined, the compiler does not keep the sums
// of a part in registers.
template <class F, int ROWS, int COLUMNS, bool IS_DECODED>
__attribute__((noinline)) static void add_groups(const Quantized<F>& weight, long panel, long first, long last,
                                                 const float* decoded, Inputs x, float* sums) {
    using Q = Quantized<F>;
    // The compiler must not unroll the loop over parts: the sums of two parts exceed the registers.
    int parts = Q::PARTS;
    if constexpr (Q::PARTS > 1) asm("" : "+r"(parts));
    constexpr int WIDTH = COLUMNS * VECTORS;
    // Where codes are fetched to, 2 is the second cache: more can be on their way there, which counts with few rows.
    constexpr int CACHE = LANES == 16 && ROWS <= 4 ? 2 : 3;
    // A copy of the sums, which the compiler knows not to overlap what is read: with 32 registers many rows take up to 9%
    // less time in bfloat16 and 4% in float32. With 16 registers a copy is no faster.
    constexpr bool IS_COPIED = LANES == 16;
    Vector totals[IS_COPIED ? ROWS : 1][WIDTH];
    const auto for_copies = [&](auto use) __attribute__((always_inline)) {
#pragma GCC unroll 9
        for (int r = 0; IS_COPIED && r < ROWS; r++)
#pragma GCC unroll 8
            for (int v = 0; v < WIDTH; v++) use(totals[r][v], sums + r * COLUMNS * PANEL + v * LANES);
    };
    for_copies([](Vector& total, const float* sum) { total = load(sum); });
    const long code_stride = weight.panel_stride(), step_stride = weight.num_groups() * Q::STEP_BYTES;
    const long scale_stride = weight.num_spans() * Q::SPAN_BYTES;
    GroupCodes codes = {weight.codes(panel, first), code_stride, weight.below()};
    const uint8_t* steps = weight.steps(panel, first);
    const uint8_t* scales = weight.scales(panel, first / weight.span_groups);
    long left = weight.span_groups - first % weight.span_groups;  // groups that share these scales
    for (long group = first; group < last; group++) {
        if constexpr (!IS_DECODED) {
            // Behind the last group, the next panels begin.
            const bool is_next = group + GROUPS_AHEAD >= last;
            const long jump = GROUPS_AHEAD - (is_next ? last - first : 0), panels = is_next ? COLUMNS : 0;
            const uint8_t* ahead = codes.at + jump * Q::GROUP_STRIDE + panels * code_stride;
#pragma GCC unroll 16
            for (int line = 0; line < COLUMNS * Q::BITS; line++)
                __builtin_prefetch(ahead + line % COLUMNS * code_stride + Q::to_line(line / COLUMNS, codes.below), 0,
                                   CACHE);
        }
        for (int p = 0; p < parts; p++) {
            Vector part[ROWS][WIDTH] = {};
            const int at = p * F::STEP_GROUP;
#if HAS_PAIRS
            if constexpr (Q::BY_PAIRS)
                add_pairs<F, ROWS, COLUMNS, IS_DECODED>(codes, decoded, x.halves, x.halves_stride, at, part);
#endif
            if constexpr (!Q::BY_PAIRS)
                add_codes<F, ROWS, COLUMNS, IS_DECODED>(codes, decoded, x.numbers, x.stride, at, part);
#pragma GCC unroll 8
            for (int v = 0; v < WIDTH; v++) {
                const long column = v / VECTORS, lane = v % VECTORS * LANES;
                const uint8_t* own_scales = scales + column * scale_stride + lane * Q::SCALE_BYTES;
                const uint8_t* own_steps = steps + column * step_stride + lane;
                Vector scale = load_scales<F::SCALES>(own_scales), minimum = {};
                if constexpr (F::STEPS != NO_STEPS) scale *= load_steps<F::STEPS>(own_steps + p * PANEL);
                if constexpr (F::HAS_MINIMA) minimum = load_scales<F::SCALES>(own_scales + PANEL * Q::SCALE_BYTES);
                if constexpr (F::HAS_MINIMUM_STEPS)
                    minimum *= load_steps<UNSIGNED_STEPS>(own_steps + Q::NUM_STEPS * PANEL);
                // A zero of codes is a minimum of as many scales.
                if constexpr (Q::IS_LINEAR && F::ZERO != 0 && !Q::BY_PAIRS)
                    minimum = multiply_add(broadcast(F::ZERO), scale, minimum);
                minimum = -minimum;
#pragma GCC unroll 8
                for (int r = 0; r < ROWS; r++) {
                    float* sum = sums + r * COLUMNS * PANEL + v * LANES;
                    Vector total = multiply_add(scale, part[r][v], IS_COPIED ? totals[r][v] : load(sum));
                    if constexpr (Q::HAS_MINIMUM)
                        total = multiply_add(minimum, broadcast(x.sums[r * x.sums_stride + p]), total);
                    if constexpr (IS_COPIED)
                        totals[r][v] = total;
                    else
                        store(sum, total);
                }
            }
        }
        codes.at += Q::GROUP_STRIDE, steps += Q::STEP_BYTES;
        if (--left == 0) scales += Q::SPAN_BYTES, left = weight.span_groups;
        if constexpr (IS_DECODED) decoded += Q::DECODED * PANEL;
        x.numbers += GROUP, x.sums += Q::PARTS, x.halves += GROUP;
    }
    for_copies([](const Vector& total, float* sum) { store(sum, total); });
}

// The same for a number of rows that the compiler does not know, at least LEAST and at most MOST.
template <class F, int LEAST, int MOST, int COLUMNS, bool IS_DECODED>
static void add_groups_of_rows(long rows, const Quantized<F>& weight, long panel, long first, long last,
                               const float* decoded, const Inputs& x, float* sums) {
    if (rows == MOST)
        return add_groups<F, MOST, COLUMNS, IS_DECODED>(weight, panel, first, last, decoded, x, sums);
    if constexpr (MOST > LEAST)
        add_groups_of_rows<F, LEAST, MOST - 1, COLUMNS, IS_DECODED>(rows, weight, panel, first, last, decoded, x, sums);
}

// The outputs of some rows. has_sums: they have the sums of the inputs before; else the sums begin with the bias or 0.
struct Outputs {
    float* numbers;
    const float* bias;
    long num_outputs;
    bool has_sums;

    Outputs from(long row) const { return {numbers + row * num_outputs, bias, num_outputs, has_sums}; }

    // Reads the sums of COLUMNS panels: [rows][COLUMNS * PANEL].
    template <int COLUMNS>
    void load_sums(long panel, long rows, float* sums) const {
        constexpr long WIDTH = COLUMNS * PANEL;
        const long column = panel * PANEL, width = std::min(num_outputs - column, WIDTH);
        if (!has_sums) {
            alignas(64) float first[WIDTH] = {};
            if (bias) memcpy(first, bias + column, width * sizeof(float));
            for (long r = 0; r < rows; r++) memcpy(sums + r * WIDTH, first, WIDTH * sizeof(float));
            return;
        }
        const float* own = numbers + column;
        for (long r = 0; r < rows; r++, own += num_outputs, sums += WIDTH)
            if (width == WIDTH)
                memcpy(sums, own, WIDTH * sizeof(float));
            else
                for (long n = 0; n < WIDTH; n++) sums[n] = n < width ? own[n] : 0;
    }

    // Writes them, and fetches where those of the next panel are.
    template <int COLUMNS>
    void store_sums(long panel, long rows, const float* sums) const {
        constexpr long WIDTH = COLUMNS * PANEL;
        const long column = panel * PANEL, width = std::min(num_outputs - column, WIDTH);
        float* own = numbers + column;
        for (long r = 0; r < rows; r++, own += num_outputs, sums += WIDTH) {
            if (width == WIDTH)
                memcpy(own, sums, WIDTH * sizeof(float));
            else
                for (long n = 0; n < width; n++) own[n] = sums[n];
            __builtin_prefetch(own + WIDTH, 1, 2);
        }
    }
};

// COLUMNS panels and from LEAST to MOST rows.
template <class F, int LEAST, int MOST, int COLUMNS, bool IS_DECODED>
static void add_panels(long rows, const Quantized<F>& weight, long panel, long first, long last, const float* decoded,
                       const Inputs& x, const Outputs& out) {
    alignas(64) float sums[MOST * COLUMNS * PANEL];
    out.load_sums<COLUMNS>(panel, rows, sums);
    add_groups_of_rows<F, LEAST, MOST, COLUMNS, IS_DECODED>(rows, weight, panel, first, last, decoded, x, sums);
    out.store_sums<COLUMNS>(panel, rows, sums);
}

// DECODED_PANELS panels of more than MOST_IN_REGISTERS rows, whose codes are decoded once.
template <class F, class InputsOf>
static void add_decoded_panels(long rows, const Quantized<F>& weight, long panel, long first, long last,
                               InputsOf inputs_of, const Outputs& out) {
    constexpr long WIDTH = DECODED_PANELS * PANEL;
    alignas(64) float decoded[DECODED_PANELS * Quantized<F>::DECODED_STRIDE], sums[QUANTIZED_ROWS_AT_ONCE * WIDTH];
    out.load_sums<DECODED_PANELS>(panel, rows, sums);
    constexpr long MOST = MOST_DECODED_ROWS, LEAST = least_in_tile(MOST);
    in_tiles(last - first, DECODED_GROUPS, [&](long begin, long groups) {
        const long group = first + begin, end = group + groups;
        for (int column = 0; column < DECODED_PANELS; column++)
            decode_groups<F>(weight, panel + column, group, end,
                             end < last ? weight.codes(panel + column, end)
                                        : weight.codes(panel + column + DECODED_PANELS, first),
                             decoded + column * Quantized<F>::DECODED_STRIDE);
        in_tiles(rows, MOST, [&](long done, long count) {
            add_groups_of_rows<F, LEAST, MOST, DECODED_PANELS, true>(count, weight, panel, group, end, decoded,
                                                                     inputs_of(done, group - first), sums + done * WIDTH);
        });
    });
    out.store_sums<DECODED_PANELS>(panel, rows, sums);
}

// Panels [begin, end) of rows [0, rows), at most QUANTIZED_ROWS_AT_ONCE. x_stride: from one row's inputs to the next
// one's.
template <class F>
static void multiply_some_rows(const Quantized<F>& weight, const float* bias, const half_t* x, long x_stride, long rows,
                               float* out, long begin, long end) {
    using Q = Quantized<F>;
    // Rows that go through so many panels at a time, and panels with more rows. Halves take registers until they are
    // put together. Codes of 8 bits are read faster in half as many panels, which have as many bytes.
    constexpr int WIDE_ROWS = LANES == 16 && !F::IS_SPLIT ? 4 : LANES == 4 ? 1 : 2, NARROW = LANES == 16 ? 2 : 1;
    constexpr int COLUMNS = (LANES == 16 ? 4 : 2) / (F::LOW == 8 ? 2 : 1);
    constexpr int MOST = MOST_TILE_ROWS, LEAST = std::min<long>(WIDE_ROWS + 1, least_in_tile(MOST));
    static thread_local std::vector<float> inputs_buffer, sums_buffer;
    const long most = std::min(Q::BY_PAIRS ? weight.num_groups() : MOST_PREPARED / GROUP / rows, weight.num_groups());
    float* inputs = room_for(Q::BY_PAIRS ? 0 : rows * most * GROUP, inputs_buffer);
    float* sums = room_for(rows * most * Q::PARTS, sums_buffer);
    in_tiles(weight.num_groups(), most, [&](long group, long num_groups) {
        const long count = num_groups * GROUP, last_group = group + num_groups;
        const half_t* halves = x + group * GROUP;
        prepare<F>(halves, x_stride, rows, count, inputs, sums);
        const auto inputs_of = [&](long r, long groups) {  // from a row and a group on
            const float* prepared = inputs + r * count + groups * GROUP;
            const float* totals = sums + (r * count + groups * GROUP) / F::STEP_GROUP;
            return Inputs{prepared, totals,   count, count / F::STEP_GROUP, halves + r * x_stride + groups * GROUP,
                          x_stride};
        };
        const Outputs outputs = {out, bias, weight.num_outputs, group > 0};
        long panel = begin;
        const bool is_few = rows <= Q::MOST_IN_REGISTERS;
        if constexpr (Q::MOST_IN_REGISTERS < QUANTIZED_ROWS_AT_ONCE)
            for (; !is_few && panel + DECODED_PANELS <= end; panel += DECODED_PANELS)
                add_decoded_panels<F>(rows, weight, panel, group, last_group, inputs_of, outputs);
        for (; rows <= WIDE_ROWS && panel + COLUMNS <= end; panel += COLUMNS)
            add_panels<F, 1, WIDE_ROWS, COLUMNS, false>(rows, weight, panel, group, last_group, nullptr,
                                                        inputs_of(0, 0), outputs);
        for (; is_few && rows > WIDE_ROWS && panel + NARROW <= end; panel += NARROW)
            in_tiles(rows, MOST, [&](long done, long count) {
                add_panels<F, LEAST, MOST, NARROW, false>(count, weight, panel, group, last_group, nullptr,
                                                          inputs_of(done, 0), outputs.from(done));
            });
        for (; panel < end; panel++)
            for (long done = 0; done < rows; done += WIDE_ROWS) {
                const long some = rows - done < WIDE_ROWS ? rows - done : WIDE_ROWS;
                add_panels<F, 1, WIDE_ROWS, 1, false>(some, weight, panel, group, last_group, nullptr,
                                                      inputs_of(done, 0), outputs.from(done));
            }
    });
}

// The share of one of `num_threads` threads: some of the panels, all rows. a: x, its start and width; the packed weight,
// bias and what is written; K, N, and groups that share a scale.
template <class F>
static void multiply_quantized(const long* a, long first, long last, long thread, long num_threads) {
    const long x_stride = a[2];
    const half_t* x = (const half_t*)a[0] + a[1];
    const Quantized<F> weight = {(const uint8_t*)a[3], a[6], a[7], a[8]};
    const long begin = weight.num_panels() * thread / num_threads, end = weight.num_panels() * (thread + 1) / num_threads;
    for (long row = first; row < last; row += QUANTIZED_ROWS_AT_ONCE) {
        const long rows = last - row < QUANTIZED_ROWS_AT_ONCE ? last - row : QUANTIZED_ROWS_AT_ONCE;
        multiply_some_rows<F>(weight, (const float*)a[4], x + row * x_stride, x_stride, rows,
                              (float*)a[5] + row * weight.num_outputs, begin, end);
    }
}

// The same with experts, whose packed weights lie one behind the other. a: see Pairs, and groups that share a scale.
template <class F>
static void multiply_quantized_experts(const long* a, long first, long last, long thread, long num_threads) {
    const Quantized<F> any = {(const uint8_t*)a[7], a[10], a[11], a[14]};
    const long begin = any.num_panels() * thread / num_threads, end = any.num_panels() * (thread + 1) / num_threads;
    const long last_column = end * PANEL < any.num_outputs ? end * PANEL : any.num_outputs;
    multiply_pairs(a, first, last, begin * PANEL, last_column,
                   [&](long expert, long, const float* bias, const half_t* x, long count, float* out) {
                       Quantized<F> weight = any;
                       weight.weight += expert * any.num_bytes();
                       multiply_some_rows<F>(weight, bias, x, any.num_inputs, count, out, begin, end);
                   });
}

// Bits of a code that lie side by side in the four bytes of a line of its group.
struct CodeBits {
    int line, first, count;
};

// Those that begin with a bit of the code of an input.
template <class F>
static constexpr CodeBits bits_of(int input, int bit) {
    using Q = Quantized<F>;
    if constexpr (!Q::IS_WHOLE) {
        constexpr int HIGH = F::HIGH ? F::HIGH : 1;
        if (bit < F::LOW) return {input / (32 / F::LOW), bit_in_half(F::LOW, input), F::LOW};
        return {F::LOW + input / (32 / HIGH), bit_in_half(HIGH, input), HIGH};
    } else {
        const int line = input / F::STEP_GROUP * Q::LINES, at = input % F::STEP_GROUP, whole = Q::LINES * Q::IN_LINE;
        if (at < whole) return {line + at / Q::IN_LINE, at % Q::IN_LINE * Q::BITS, Q::BITS};
        const int left = (at - whole) * Q::BITS + bit, first = left % Q::LEFT;
        const int count = Q::LEFT - first < Q::BITS - bit ? Q::LEFT - first : Q::BITS - bit;
        return {line + left / Q::LEFT, 32 - Q::LEFT + first, count};
    }
}

// Writes the codes of an output to those of its group. lane: the output's place in its panel. below: see Quantized.
template <class F>
static void write_codes(const uint8_t* codes, long lane, long below, uint8_t* group) {
    using Q = Quantized<F>;
    if constexpr (Q::BY_BYTES) {
        for (int k = 0; k < GROUP; k++) group[k * PANEL + lane] = codes[k] ^ SIGN;
        return;
    }
    uint32_t lines[Q::BITS] = {};
    for (int k = 0; k < GROUP; k++)
        for (int bit = 0; bit < Q::BITS;) {
            const CodeBits some = bits_of<F>(k, bit);
            lines[some.line] |= (codes[k] >> bit & ((1u << some.count) - 1)) << some.first;
            bit += some.count;
        }
    if constexpr (F::IS_SPLIT) {
        uint32_t stored[Q::BITS];
        for (int n = 0; n < Q::BITS / 2; n++) {
            const uint32_t even = lines[2 * n], odd = lines[2 * n + 1];
            stored[n] = join_upper(odd, even), stored[Q::BITS / 2 + n] = join_lower(odd, even);
        }
        memcpy(lines, stored, sizeof(lines));
    }
    for (int n = 0; n < Q::BITS; n++) memcpy(group + Q::to_line(n, below) + lane * 4, lines + n, 4);
}

// The inverse: reads the codes of an output, uint8 [GROUP].
template <class F>
static void read_codes(const uint8_t* group, long lane, long below, uint8_t* codes) {
    using Q = Quantized<F>;
    if constexpr (Q::BY_BYTES) {
        for (int k = 0; k < GROUP; k++) codes[k] = group[k * PANEL + lane] ^ SIGN;
        return;
    }
    uint32_t lines[Q::BITS];
    for (int n = 0; n < Q::BITS; n++) memcpy(lines + n, group + Q::to_line(n, below) + lane * 4, 4);
    if constexpr (F::IS_SPLIT) {
        uint32_t whole[Q::BITS];
        for (int n = 0; n < Q::BITS / 2; n++) {
            const uint32_t upper = lines[n], lower = lines[Q::BITS / 2 + n];
            whole[2 * n] = join_lower(upper, lower), whole[2 * n + 1] = join_upper(upper, lower);
        }
        memcpy(lines, whole, sizeof(lines));
    }
    for (int k = 0; k < GROUP; k++) {
        codes[k] = 0;
        for (int bit = 0; bit < Q::BITS;) {
            const CodeBits some = bits_of<F>(k, bit);
            codes[k] |= (lines[some.line] >> some.first & ((1u << some.count) - 1)) << bit;
            bit += some.count;
        }
    }
}

// One of a panel's scales, or of its minima, which lie behind them.
template <class F>
static float scale_at(const uint8_t* scales, long number) {
    alignas(64) uint8_t bytes[LANES * 4] = {};
    memcpy(bytes, scales + number * Quantized<F>::SCALE_BYTES, Quantized<F>::SCALE_BYTES);
    return load_scales<F::SCALES>(bytes)[0];
}

// Writes the numbers of one output, as a row of a table of embeddings.
template <class F>
static void look_up(const uint8_t* weight, long num_outputs, long num_inputs, long span_groups, long output, float* out) {
    using Q = Quantized<F>;
    const Q table = {weight, num_inputs, num_outputs, span_groups};
    const long panel = output / PANEL, lane = output % PANEL;
    for (long group = 0; group < table.num_groups(); group++) {
        const uint8_t* scales = table.scales(panel, group / span_groups);
        const uint8_t* steps = table.steps(panel, group);
        const float own_scale = scale_at<F>(scales, lane);
        float own_minimum = 0;
        if constexpr (F::HAS_MINIMA) own_minimum = scale_at<F>(scales, PANEL + lane);
        if constexpr (F::HAS_MINIMUM_STEPS) own_minimum *= (float)steps[Q::NUM_STEPS * PANEL + lane];
        uint8_t codes[GROUP];
        read_codes<F>(table.codes(panel, group), lane, table.below(), codes);
        for (int k = 0; k < GROUP; k++) {
            float own = own_scale;
            if constexpr (F::STEPS == UNSIGNED_STEPS) own *= (float)steps[k / F::STEP_GROUP * PANEL + lane];
            if constexpr (F::STEPS == SIGNED_STEPS) own *= (float)(int8_t)steps[k / F::STEP_GROUP * PANEL + lane];
            float value;
            if constexpr (Q::IS_LINEAR)
                value = (float)codes[k] - F::ZERO;
            else
                value = F::CODEBOOK[codes[k]];
            out[group * GROUP + k] = own * value - own_minimum;
        }
    }
}

// Packs the codes of panels [first, last), uint8 [panels * PANEL][num_inputs], of a weight of so many outputs.
template <class F>
static void pack_codes(const uint8_t* codes, long first, long last, long num_inputs, long num_outputs, uint8_t* weight) {
    const Quantized<F> packed = {weight, num_inputs, num_outputs, 1};
#pragma omp parallel for
    for (long panel = first; panel < last; panel++)
        for (long group = 0; group < packed.num_groups(); group++)
            for (int lane = 0; lane < PANEL; lane++)
                write_codes<F>(codes + ((panel - first) * PANEL + lane) * num_inputs + group * GROUP, lane, packed.below(),
                               weight + (packed.codes(panel, group) - packed.weight));
}
