// Attention of a tree's rows over the KV cache: each row sees the prefix, its ancestors and itself.
//
// For every row and head the keys are taken in the order of their positions, one after another, whether they lie in the
// prefix or in the tree. So a row's result is the same to the last bit wherever the prefix ends and whatever other rows
// there are.
#pragma once

#include "numbers.h"

#define KEYS 64        // that are turned at once
#define KEY_VECTORS 4  // in a tile of scores
#if LANES == 16
#define QUERIES 6  // in a tile of scores
#elif LANES == 8
#define QUERIES 2
#else
#define QUERIES 4
#endif
#define MOST_QUERIES 48  // of one task
#define ENOUGH_ROWS 2    // for a task, if there are too few for all threads

// What all layers of a step share. starts, visible: row r sees the rows visible[starts[r]] ... visible[starts[r + 1] -
// 1], itself the last. The cache holds `length` tokens before this step's rows, and has room for `capacity`.
struct Step {
    const long *tokens, *positions;
    long num_rows, num_answered, length, capacity;
    weight_t *const *keys, *const *values;
    const int *starts, *visible;
};

// Writes one row's keys or values behind the prefix.
static inline void keep(weight_t* cache, const Step& step, long row, const float* from, long stride, long num_heads,
                        long size) {
    for (long head = 0; head < num_heads; head++) {
        weight_t* to = cache + (head * step.capacity + step.length + row) * size;
        for (long d = 0; d < size; d++) to[d] = rounded(from[head * stride + d]);
    }
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

// Scores of COUNT queries with KEY_VECTORS vectors of keys, from keys that lie turned: turned[d][key].
template <int COUNT, int SIZE>
static inline void score(const float* const* queries, const float* turned, float* const* scores, long offset,
                         float scale, float softcap) {
    Vector sums[COUNT][KEY_VECTORS];
    for (int q = 0; q < COUNT; q++)
        for (int v = 0; v < KEY_VECTORS; v++) sums[q][v] = Vector{};
    for (int d = 0; d < SIZE; d++) {
        Vector keys[KEY_VECTORS];
        for (int v = 0; v < KEY_VECTORS; v++) keys[v] = load(turned + d * KEYS + v * LANES);
        for (int q = 0; q < COUNT; q++)
            for (int v = 0; v < KEY_VECTORS; v++)
                sums[q][v] = multiply_add(broadcast(queries[q][d]), keys[v], sums[q][v]);
    }
    for (int q = 0; q < COUNT; q++)
        for (int v = 0; v < KEY_VECTORS; v++) store(scores[q] + offset + v * LANES, sums[q][v] * broadcast(scale));
    if (softcap > 0.0f)
        for (int q = 0; q < COUNT; q++)
            for (int n = 0; n < KEY_VECTORS * LANES; n++) {
                float* score = scores[q] + offset + n;
                *score = softcap * hyperbolic_tangent(*score / softcap);
            }
}

// The numbers of a value as floats, padded with zeros.
template <int SIZE, int PADDED>
static inline void widen_one(const weight_t* value, float* to) {
    int d = 0;
    for (; d + LANES <= SIZE; d += LANES) store(to + d, load_numbers(value + d));
    for (; d < PADDED; d++) to[d] = d < SIZE ? number(value[d]) : 0.0f;
}

// The same for `count` values: where they lie if they need no change, else in `room`.
template <int SIZE, int PADDED>
static inline const float* widen(const weight_t* values, long count, float* room) {
    if constexpr (sizeof(weight_t) == sizeof(float) && SIZE == PADDED) return (const float*)values;
    for (long n = 0; n < count; n++) widen_one<SIZE, PADDED>(values + n * SIZE, room + n * PADDED);
    return room;
}

// Adds weighted values to COUNT outputs, at numbers [d, d + WIDE vectors).
template <int COUNT, int WIDE>
static inline void add_values(float* const* weights, long first, const float* values, long stride, long count,
                              float* const* outs, int d) {
    Vector sums[COUNT][WIDE];
    for (int q = 0; q < COUNT; q++)
        for (int v = 0; v < WIDE; v++) sums[q][v] = load(outs[q] + d + v * LANES);
    for (long key = 0; key < count; key++) {
        Vector value[WIDE];
        for (int v = 0; v < WIDE; v++) value[v] = load(values + key * stride + d + v * LANES);
        for (int q = 0; q < COUNT; q++) {
            const Vector weight = broadcast(weights[q][first + key]);
            for (int v = 0; v < WIDE; v++) sums[q][v] = multiply_add(weight, value[v], sums[q][v]);
        }
    }
    for (int q = 0; q < COUNT; q++)
        for (int v = 0; v < WIDE; v++) store(outs[q] + d + v * LANES, sums[q][v]);
}

template <int COUNT, int PADDED>
static inline void add_all_values(float* const* weights, long first, const float* values, long count,
                                  float* const* outs) {
    int d = 0;
    for (; d + KEY_VECTORS * LANES <= PADDED; d += KEY_VECTORS * LANES)
        add_values<COUNT, KEY_VECTORS>(weights, first, values, PADDED, count, outs, d);
    for (; d < PADDED; d += LANES) add_values<COUNT, 1>(weights, first, values, PADDED, count, outs, d);
}

// Turns scores [first, last) into weights that add up to 1 / sum; returns 1 / sum.
static inline float soften(float* scores, long first, long last) {
    float most = -INFINITY, sum = 0.0f;
#pragma omp simd reduction(max : most)
    for (long key = first; key < last; key++) most = larger(most, scores[key]);
#pragma omp simd reduction(+ : sum)
    for (long key = first; key < last; key++) {
        scores[key] = exponential(scores[key] - most);
        sum += scores[key];
    }
    return 1.0f / sum;
}

// One key/value head for rows [first, last), at most MOST_QUERIES queries. room: memory for the scores.
template <int SIZE>
static void attend_task(const float* query, long query_width, long query_stride, float* out, const weight_t* keys,
                        const weight_t* values, const Step& step, long head, long num_groups, long num_heads,
                        long first, long last, float scale, long window, float softcap, float* room) {
    constexpr int PADDED = (SIZE + LANES - 1) / LANES * LANES;
    const long num_keys = step.length + step.num_rows, stride = (num_keys + KEYS - 1) / KEYS * KEYS;
    const long num_queries = (last - first) * num_groups;
    keys += head * step.capacity * SIZE;
    values += head * step.capacity * SIZE;
    const float* queries[MOST_QUERIES];
    float *scores[MOST_QUERIES], *outs[MOST_QUERIES];
    alignas(64) float sums[MOST_QUERIES * PADDED], turned[KEYS * PADDED];
    float factors[MOST_QUERIES];
    for (long q = 0; q < num_queries; q++) {
        queries[q] =
            query + (first + q / num_groups) * query_width + (head * num_groups + q % num_groups) * query_stride;
        scores[q] = room + q * stride;
        outs[q] = sums + q * PADDED;
    }
    memset(sums, 0, sizeof(float) * num_queries * PADDED);
    // A window hides the first keys from all these rows.
    long hidden = 0;
    if (window > 0) {
        hidden = num_keys;
        for (long r = first; r < last; r++) {
            const long seen = step.length + step.starts[r + 1] - step.starts[r] - window;
            hidden = hidden < seen ? hidden : seen;
        }
        hidden = hidden < 0 ? 0 : hidden;
    }
    for (long key = hidden / KEYS * KEYS; key < num_keys; key += KEYS) {
        const long count = num_keys - key < KEYS ? num_keys - key : KEYS;
        turn_keys<SIZE>(keys + key * SIZE, count, turned);
        for (long part = 0; part < KEYS; part += KEY_VECTORS * LANES) {
            long q = 0;
            for (; q + QUERIES <= num_queries; q += QUERIES)
                score<QUERIES, SIZE>(queries + q, turned + part, scores + q, key + part, scale, softcap);
            for (; q < num_queries; q++)
                score<1, SIZE>(queries + q, turned + part, scores + q, key + part, scale, softcap);
        }
    }
    for (long q = 0; q < num_queries; q++) {
        const long row = first + q / num_groups, num_seen = step.starts[row + 1] - step.starts[row];
        for (long n = 0; n < num_seen; n++)
            scores[q][step.length + n] = scores[q][step.length + step.visible[step.starts[row] + n]];
        long begin = window > 0 ? step.length + num_seen - window : 0;
        begin = begin < 0 ? 0 : begin;
        factors[q] = soften(scores[q], begin, step.length + num_seen);
        for (long key = hidden; key < begin && key < step.length; key++) scores[q][key] = 0.0f;
        for (long key = step.length; key < begin; key++) scores[q][key] = 0.0f;
    }
    for (long key = hidden; key < step.length; key += KEYS) {
        const long count = step.length - key < KEYS ? step.length - key : KEYS;
        const float* wide = widen<SIZE, PADDED>(values + key * SIZE, count, turned);
        long q = 0;
        for (; q + QUERIES <= num_queries; q += QUERIES)
            add_all_values<QUERIES, PADDED>(scores + q, key, wide, count, outs + q);
        for (; q < num_queries; q++) add_all_values<1, PADDED>(scores + q, key, wide, count, outs + q);
    }
    for (long row = first; row < last; row++) {
        const long num_seen = step.starts[row + 1] - step.starts[row], q = (row - first) * num_groups;
        const int* seen = step.visible + step.starts[row];
        for (long begin = 0; begin < num_seen; begin += KEYS) {
            const long count = num_seen - begin < KEYS ? num_seen - begin : KEYS;
            for (long n = 0; n < count; n++)
                widen_one<SIZE, PADDED>(values + (step.length + seen[begin + n]) * SIZE, turned + n * PADDED);
            for (long g = q; g < q + num_groups; g++)
                add_all_values<1, PADDED>(scores + g, step.length + begin, turned, count, outs + g);
        }
    }
    for (long q = 0; q < num_queries; q++) {
        const long row = first + q / num_groups;
        float* to = out + row * num_heads * num_groups * SIZE + (head * num_groups + q % num_groups) * SIZE;
        for (long d = 0; d < SIZE; d++) to[d] = outs[q][d] * factors[q];
    }
}

// The share of one of `num_threads` threads: some of the heads and rows.
template <int SIZE>
static void attend(const float* query, long query_width, long query_stride, float* out, long layer, const Step& step,
                   long num_heads, long num_groups, long first, float scale, long window, float softcap, float* room,
                   long thread, long num_threads) {
    // Tasks of about the same size, as many for each thread: a task turns all keys, so there are no more than needed.
    const long count = step.num_rows - first, most = MOST_QUERIES / num_groups > 0 ? MOST_QUERIES / num_groups : 1;
    long num_chunks = (count + most - 1) / most;
    while (num_chunks * num_heads % num_threads && num_chunks * ENOUGH_ROWS <= count) num_chunks++;
    for (long task = thread; task < num_heads * num_chunks; task += num_threads) {
        const long chunk = task / num_heads, begin = first + count * chunk / num_chunks,
                   end = first + count * (chunk + 1) / num_chunks;
        attend_task<SIZE>(query, query_width, query_stride, out, step.keys[layer], step.values[layer], step,
                          task % num_heads, num_groups, num_heads, begin, end, scale, window, softcap, room);
    }
}
