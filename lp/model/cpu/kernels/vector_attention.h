// Attention by the processor's vectors, in float32.
//
// For every query the keys are taken one after another, in the order of their positions.
#pragma once

#include "attention_task.h"

#define KEY_VECTORS 4  // in a tile of scores
// QUERIES: in a tile of scores. NUMBERS: of a key, whose products with all queries are added at a time, so that those of a
// tile's keys stay in the first cache.
#if LANES == 16
#define QUERIES 6
#define NUMBERS 128
#elif LANES == 8
#define QUERIES 2
#define NUMBERS 192
#else
#define QUERIES 4
#define NUMBERS 384
#endif

// The numbers of up to KEYS keys turned: to[d][key]. SIZE numbers of each key.
template <int SIZE>
static inline void turn_keys(const weight_t* keys, long count, float* to) {
    long key = 0;
    for (; key + LANES <= count; key += LANES) {
        int d = 0;
        for (; d + LANES <= SIZE; d += LANES) {
            Vector rows[LANES];
            for (int n = 0; n < LANES; n++) rows[n] = load_numbers(keys + (key + n) * SIZE + d);
            turn(rows);
            for (int n = 0; n < LANES; n++) store(to + (d + n) * KEYS + key, rows[n]);
        }
        for (; d < SIZE; d++)
            for (int n = 0; n < LANES; n++) to[d * KEYS + key + n] = number(keys[(key + n) * SIZE + d]);
    }
    for (; key < KEYS; key++)
        for (int d = 0; d < SIZE; d++) to[d * KEYS + key] = key < count ? number(keys[key * SIZE + d]) : 0.0f;
}

// Scores of COUNT queries with KEY_VECTORS vectors of keys, from keys that lie turned: turned[d][key]. The products of NUMBERS
// numbers from `first` on are added to those before them, which lie in the place of the scores.
template <int COUNT, int SIZE>
static inline void score(const float* const* queries, const float* turned, float* const* scores, long offset, int first,
                         float scale, float softcap) {
    const int last = first + NUMBERS < SIZE ? first + NUMBERS : SIZE;
    Vector sums[COUNT][KEY_VECTORS];
    for (int q = 0; q < COUNT; q++)
        for (int v = 0; v < KEY_VECTORS; v++)
            sums[q][v] = first > 0 ? load(scores[q] + offset + v * LANES) : Vector{};
    for (int d = first; d < last; d++) {
        Vector keys[KEY_VECTORS];
        for (int v = 0; v < KEY_VECTORS; v++) keys[v] = load(turned + d * KEYS + v * LANES);
        for (int q = 0; q < COUNT; q++)
            for (int v = 0; v < KEY_VECTORS; v++)
                sums[q][v] = multiply_add(broadcast(queries[q][d]), keys[v], sums[q][v]);
    }
    const Vector factor = broadcast(last < SIZE ? 1.0f : scale);
    for (int q = 0; q < COUNT; q++)
        for (int v = 0; v < KEY_VECTORS; v++) store(scores[q] + offset + v * LANES, sums[q][v] * factor);
    if (last == SIZE && softcap > 0.0f)
        for (int q = 0; q < COUNT; q++)
            for (int n = 0; n < KEY_VECTORS * LANES; n++) {
                float* score = scores[q] + offset + n;
                *score = softcap * hyperbolic_tangent(*score / softcap);
            }
}

// Scores of all queries with KEY_VECTORS vectors of keys.
template <int SIZE>
static inline void score_all(const float* const* queries, long num_queries, const float* turned, float* const* scores,
                             long offset, float scale, float softcap) {
    for (int first = 0; first < SIZE; first += NUMBERS) {
        long q = 0;
        for (; q + QUERIES <= num_queries; q += QUERIES)
            score<QUERIES, SIZE>(queries + q, turned, scores + q, offset, first, scale, softcap);
        for (; q < num_queries; q++) score<1, SIZE>(queries + q, turned, scores + q, offset, first, scale, softcap);
    }
}

// The numbers of a value as floats, padded with zeros.
template <int SIZE, int PADDED>
static inline void widen_one(const weight_t* value, float* to) {
    int d = 0;
    for (; d + LANES <= SIZE; d += LANES) store(to + d, load_numbers(value + d));
    for (; d < PADDED; d++) to[d] = d < SIZE ? number(value[d]) : 0.0f;
}

// Values as floats, `stride` numbers apart.
struct Values {
    const float* numbers;
    long stride;
};

// The values of `count` keys from `key` on: where they lie if they need no change, else in `room`.
template <int SIZE, int PADDED>
static inline Values widen(const Task& task, long key, long count, float* room) {
    if constexpr (sizeof(weight_t) == sizeof(float) && SIZE == PADDED)
        return {(const float*)task.value(key), task.value_stride};
    for (long n = 0; n < count; n++) widen_one<SIZE, PADDED>(task.value(key + n), room + n * PADDED);
    return {room, PADDED};
}

// Adds weighted values to COUNT outputs, at numbers [d, d + WIDE vectors).
template <int COUNT, int WIDE>
static inline void add_values(float* const* weights, long first, Values values, long count, float* const* outs, int d) {
    Vector sums[COUNT][WIDE];
    for (int q = 0; q < COUNT; q++)
        for (int v = 0; v < WIDE; v++) sums[q][v] = load(outs[q] + d + v * LANES);
    for (long key = 0; key < count; key++) {
        Vector value[WIDE];
        for (int v = 0; v < WIDE; v++) value[v] = load(values.numbers + key * values.stride + d + v * LANES);
        for (int q = 0; q < COUNT; q++) {
            const Vector weight = broadcast(weights[q][first + key]);
            for (int v = 0; v < WIDE; v++) sums[q][v] = multiply_add(weight, value[v], sums[q][v]);
        }
    }
    for (int q = 0; q < COUNT; q++)
        for (int v = 0; v < WIDE; v++) store(outs[q] + d + v * LANES, sums[q][v]);
}

// The same for all outputs.
template <int WIDE>
static inline void add_part(float* const* weights, long first, Values values, long count, float* const* outs,
                            long num_queries, int d) {
    long q = 0;
    for (; q + QUERIES <= num_queries; q += QUERIES)
        add_values<QUERIES, WIDE>(weights + q, first, values, count, outs + q, d);
    for (; q < num_queries; q++) add_values<1, WIDE>(weights + q, first, values, count, outs + q, d);
}

// The same for all numbers, of which as many are taken at a time as stay in the first cache.
template <int PADDED>
static inline void add_all_values(float* const* weights, long first, Values values, long count, float* const* outs,
                                  long num_queries) {
    int d = 0;
    for (; d + KEY_VECTORS * LANES <= PADDED; d += KEY_VECTORS * LANES)
        add_part<KEY_VECTORS>(weights, first, values, count, outs, num_queries, d);
    for (; d < PADDED; d += LANES) add_part<1>(weights, first, values, count, outs, num_queries, d);
}

// room: memory for the scores.
template <int KEY_SIZE, int VALUE_SIZE>
static void attend_by_vectors(const Task& task, float* room) {
    constexpr int PADDED = (VALUE_SIZE + LANES - 1) / LANES * LANES;
    constexpr int PADDED_KEY = (KEY_SIZE + LANES - 1) / LANES * LANES;
    const long num_queries = task.num_queries(), num_keys = task.num_keys(), hidden = task.begin_of_all();
    const long length = task.length;
    const float* queries[MOST_QUERIES];
    float *scores[MOST_QUERIES], *outs[MOST_QUERIES];
    alignas(64) float sums[MOST_QUERIES * PADDED], turned[KEYS * (PADDED > PADDED_KEY ? PADDED : PADDED_KEY)];
    float factors[MOST_QUERIES];
    for (long q = 0; q < num_queries; q++) {
        queries[q] = task.query_of(q);
        scores[q] = room + q * task.stride();
        outs[q] = sums + q * PADDED;
    }
    memset(sums, 0, sizeof(float) * num_queries * PADDED);
    for (long key = hidden / KEYS * KEYS; key < num_keys; key += KEYS) {
        const long count = num_keys - key < KEYS ? num_keys - key : KEYS;
        turn_keys<KEY_SIZE>(task.keys + key * KEY_SIZE, count, turned);
        for (long part = 0; part < KEYS; part += KEY_VECTORS * LANES)
            score_all<KEY_SIZE>(queries, num_queries, turned + part, scores, key + part, task.scale, task.softcap);
    }
    for (long q = 0; q < num_queries; q++) {
        const long row = task.row_of(q), begin = task.begin_of(row);
        task.follow_path(row, scores[q]);
        factors[q] = soften(scores[q], begin, task.end_of(row), task.sink_of(q));
        for (long key = hidden < length ? hidden : length; key < begin; key++) scores[q][key] = 0.0f;
    }
    for (long key = hidden; key < length; key += KEYS) {
        const long count = length - key < KEYS ? length - key : KEYS;
        const Values values = widen<VALUE_SIZE, PADDED>(task, key, count, turned);
        add_all_values<PADDED>(scores, key, values, count, outs, num_queries);
    }
    for (long row = task.first; row < task.last; row++) {
        const long num_seen = task.end_of(row) - length, q = (row - task.first) * task.num_groups;
        for (long begin = 0; begin < num_seen; begin += KEYS) {
            const long count = num_seen - begin < KEYS ? num_seen - begin : KEYS;
            for (long n = 0; n < count; n++)
                widen_one<VALUE_SIZE, PADDED>(task.value(length + task.seen_by(row)[begin + n]), turned + n * PADDED);
            add_all_values<PADDED>(scores + q, length + begin, {turned, PADDED}, count, outs + q, task.num_groups);
        }
    }
    for (long q = 0; q < num_queries; q++) {
        float* to = task.out_of(q);
        for (long d = 0; d < VALUE_SIZE; d++) to[d] = outs[q][d] * factors[q];
    }
}
