// The number formats of a model, and functions that PyTorch's operations need.
//
// WEIGHT_FORMAT says which numbers weights and the KV cache are made of: 0 float32, 1 bfloat16, 2 float16.
#pragma once

#include "vectors.h"

#define PANEL 16  // outputs that lie side by side in a packed weight
// Pairs of bfloat16 are multiplied and added by one instruction.
#if WEIGHT_FORMAT == 1 && defined(__AVX512BF16__) && defined(__AVX512BW__)
#define HAS_PAIRS 1
#else
#define HAS_PAIRS 0
#endif
// Rows of which only the largest outputs are computed in full (screened.h), as long as that is faster.
#define MOST_SCREENED_ROWS (HAS_PAIRS ? 8 : 16)

#if WEIGHT_FORMAT == 0
typedef float weight_t;
#elif WEIGHT_FORMAT == 1
typedef uint16_t weight_t;
#else
typedef _Float16 weight_t;
#endif
typedef weight_t half_t;

#if WEIGHT_FORMAT == 1
static inline float number(weight_t stored) { return from_bfloat16(stored); }
static inline weight_t rounded(float value) { return to_bfloat16(value); }
#else
static inline float number(weight_t stored) { return (float)stored; }
static inline weight_t rounded(float value) { return (weight_t)value; }
#endif

#if WEIGHT_FORMAT == 1
typedef uint16_t Halves __attribute__((vector_size(LANES * 2), aligned(2), may_alias));
#endif

// As many stored numbers as a vector has lanes.
static inline Vector load_numbers(const weight_t* from) {
#if WEIGHT_FORMAT == 0
    return load(from);
#elif WEIGHT_FORMAT == 1
    return (Vector)(__builtin_convertvector(*(const Halves*)from, Integers) << 16);
#else
    return load_halves(from);
#endif
}

// Takes numbers that are too small for full precision as 0, which is faster, until it is undone.
class FlushSmall {
   public:
#if defined(__x86_64__)
    FlushSmall() : before_(_mm_getcsr()) { _mm_setcsr(before_ | 0x8040); }
    ~FlushSmall() { _mm_setcsr(before_); }

   private:
    const unsigned before_;
#endif
};

// A float among arguments that are integers.
static inline float float_of(long bits) {
    const int32_t lower = bits;
    float value;
    memcpy(&value, &lower, sizeof value);
    return value;
}

// The C library's fmaxf and fminf are calls, as they ask for NaN.
static inline float larger(float a, float b) { return a > b ? a : b; }
static inline float smaller(float a, float b) { return a < b ? a : b; }

// e to the power of x, within two units in the last place, for x from -87.3 to 88; outside, that of the nearer end. NaN
// stays NaN. Adding a number whose last bit is worth 1 rounds to a whole number, which is then in its lower bits.
static inline float exponential(float x) {
    x = -87.3f > x ? -87.3f : x;
    x = 88.0f < x ? 88.0f : x;
    const float whole = 12582912.0f, shifted = x * 1.44269504f + whole, power = shifted - whole;
    const float rest = (x - power * 0.693359375f) + power * 2.12194440e-4f;
    float sum = 1.9875691500e-4f;
    sum = sum * rest + 1.3981999507e-3f;
    sum = sum * rest + 8.3334519073e-3f;
    sum = sum * rest + 4.1665795894e-2f;
    sum = sum * rest + 1.6666665459e-1f;
    sum = sum * rest + 5.0000001201e-1f;
    sum = sum * rest * rest + rest + 1.0f;
    uint32_t bits;
    memcpy(&bits, &shifted, 4);
    bits = (bits << 23) + 0x3f800000;
    float factor;
    memcpy(&factor, &bits, 4);
    return sum * factor;
}

static inline float hyperbolic_tangent(float x) {
    const float size = fabsf(x);
    const float decay = exponential(-2.0f * size);
    const float square = x * x;
    const float series = x * (1.0f + square * (-0.333333333f + square * (0.133333333f - square * 0.0539682540f)));
    const float quotient = (1.0f - decay) / (1.0f + decay);
    return size < 0.1f ? series : __builtin_copysignf(quotient, x);
}

// The error function, within 2e-7 (Abramowitz and Stegun, Handbook of Mathematical Functions, 7.1.26).
static inline float error_function(float x) {
    const float size = fabsf(x);
    const float t = 1.0f / (1.0f + 0.3275911f * size);
    const float sum =
        t * (0.254829592f + t * (-0.284496736f + t * (1.421413741f + t * (-1.453152027f + t * 1.061405429f))));
    const float value = 1.0f - sum * exponential(-size * size);
    return __builtin_copysignf(value, x);
}

static inline float gelu(float x) { return 0.5f * x * (1.0f + error_function(x * 0.70710678f)); }

static inline float gelu_by_tanh(float x) {
    return 0.5f * x * (1.0f + hyperbolic_tangent(0.79788456f * (x + 0.044715f * x * x * x)));
}
