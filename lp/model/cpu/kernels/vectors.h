// Vectors of floats, as wide as the processor's registers, and functions on them.
//
// Everything here computes each lane by itself, so a value never depends on the lane in which it lies.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#if defined(__AVX512F__)
#define LANES 16
#elif defined(__AVX2__)
#define LANES 8
#else
#define LANES 4
#endif

typedef float Vector __attribute__((vector_size(LANES * 4), aligned(4), may_alias));
typedef int32_t Integers __attribute__((vector_size(LANES * 4), aligned(4), may_alias));

static inline Vector broadcast(float value) {
#if defined(__AVX512F__)
    return (Vector)_mm512_set1_ps(value);
#elif defined(__AVX2__)
    return (Vector)_mm256_set1_ps(value);
#else
    return value - (Vector){};
#endif
}

// a * b + c, rounded once where the processor can do that.
static inline Vector multiply_add(Vector a, Vector b, Vector c) {
#if defined(__AVX512F__)
    return (Vector)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__FMA__)
    return (Vector)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#else
    return a * b + c;
#endif
}

static inline Vector load(const float* from) { return *(const Vector*)from; }
static inline void store(float* to, Vector value) { *(Vector*)to = value; }

// As many float16 as a vector has lanes. The compiler would convert them one by one.
static inline Vector load_halves(const void* from) {
#if LANES == 16
    return (Vector)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)from));
#elif LANES == 8 && defined(__F16C__)
    return (Vector)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)from));
#else
    Vector numbers;
    for (int l = 0; l < LANES; l++) numbers[l] = (float)((const _Float16*)from)[l];
    return numbers;
#endif
}

// The bits of a float that is rounded to the nearest bfloat16, ties to even. NaN stays NaN.
static inline uint16_t to_bfloat16(float value) {
    uint32_t bits;
    memcpy(&bits, &value, 4);
    uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    return (bits & 0x7fffffff) > 0x7f800000 ? 0x7fc0 : rounded;
}

static inline float from_bfloat16(uint16_t half) {
    uint32_t bits = (uint32_t)half << 16;
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

// Turns LANES rows of LANES numbers: row i, number j becomes row j, number i.
static inline void turn(Vector* rows) {
    Integers lane;
    for (int l = 0; l < LANES; l++) lane[l] = l;
#pragma GCC unroll 4
    for (int half = LANES / 2; half > 0; half /= 2) {
        const Integers in_second = (lane & half) != 0;  // -1 where it holds
        const Integers low = lane + (in_second & (LANES - half)), high = lane + half + (in_second & (LANES - half));
#pragma GCC unroll 16
        for (int i = 0; i < LANES; i++)
            if (!(i & half)) {
                const Vector first = rows[i], second = rows[i + half];
                rows[i] = __builtin_shuffle(first, second, low);
                rows[i + half] = __builtin_shuffle(first, second, high);
            }
    }
}

// The sum of a vector's numbers, halves first.
static inline float sum_of(Vector numbers) {
    Integers lane;
    for (int l = 0; l < LANES; l++) lane[l] = l;
#pragma GCC unroll 4
    for (int half = LANES / 2; half > 0; half /= 2) numbers += __builtin_shuffle(numbers, lane ^ half);
    return numbers[0];
}

// The fewest rows of one of several tiles of at most `most`.
static constexpr long least_in_tile(long most) { return (most + 1) / 2; }

// Calls compute(first, count) for rows or queries in as few tiles of at most `most` as possible, of about the same size.
template <class Compute>
static inline void in_tiles(long rows, long most, Compute compute) {
    const long num_tiles = (rows + most - 1) / most;
    for (long tile = 0, done = 0; tile < num_tiles; tile++) {
        const long count = (rows - done + num_tiles - tile - 1) / (num_tiles - tile);
        compute(done, count);
        done += count;
    }
}
