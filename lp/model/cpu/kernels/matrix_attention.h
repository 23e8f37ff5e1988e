// Attention by the matrix unit, for keys and values in bfloat16.
//
// Queries, and the weights of the values, are rounded to bfloat16 as well; sums are float32. A score depends on its query
// and key alone. Values are added in blocks of 32 keys by their positions: those of the prefix are shared by all rows,
// and a row has blocks of its own from the one in which the prefix ends, with the keys of its path in their order.
#pragma once

#include "attention_task.h"
#include "matrix_unit.h"

#if HAS_MATRIX_UNIT

#define TILE (TILE_ROWS * TILE_INPUTS)  // numbers of a tile in bfloat16
#define VALUES TILE_INPUTS  // of a block

typedef uint16_t Numbers __attribute__((vector_size(64), aligned(2), may_alias));

// The compiler does not know that tiles are loaded from memory: what was written to it before must be there.
static inline void finish_writing() { asm volatile("" ::: "memory"); }

static inline void store_rounded(half_t* to, Vector values) {
    const Integers bits = (Integers)values;
    const Integers sums = bits + 0x7fff + ((bits >> 16) & 1);
    *(Halves*)to = __builtin_convertvector((sums >> 16) & 0xffff, Halves);
}

// The tiles of up to TILE_ROWS keys: in tile t, row i has the numbers 32 t + 2 i and 32 t + 2 i + 1 of every key.
template <int SIZE>
static inline void tile_keys(const half_t* keys, long count, half_t* tiles) {
    for (int d = 0; d < SIZE; d += TILE_INPUTS, tiles += TILE) {
        Vector rows[TILE_ROWS];
        for (int n = 0; n < TILE_ROWS; n++) rows[n] = n < count ? load((const float*)(keys + n * SIZE + d)) : Vector{};
        turn(rows);
        for (int n = 0; n < TILE_ROWS; n++) store((float*)(tiles + n * TILE_INPUTS), rows[n]);
    }
}

// The tiles of a block of values: in tile t, row i has the numbers 16 t ... 16 t + 15 of values 2 i and 2 i + 1 in turn.
template <int SIZE>
static inline void tile_values(const half_t* const* values, half_t* tiles) {
    Numbers low, high;
    for (int n = 0; n < 32; n++) low[n] = n / 2 + n % 2 * 32, high[n] = n / 2 + n % 2 * 32 + 16;
    for (int row = 0; row < TILE_ROWS; row++)
        for (int d = 0; d < SIZE; d += 32) {
            const Numbers first = *(const Numbers*)(values[2 * row] + d), second = *(const Numbers*)(values[2 * row + 1] + d);
            half_t* to = tiles + d / 16 * TILE + row * 32;
            *(Numbers*)to = __builtin_shuffle(first, second, low);
            *(Numbers*)(to + TILE) = __builtin_shuffle(first, second, high);
        }
}

// Scores of NUM_TILES tiles of queries with the keys of `keys`.
template <int SIZE, int NUM_TILES>
static inline void score_tiles(const half_t* queries, const half_t* keys, float* scores, long stride) {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
#pragma GCC unroll 8
    for (int d = 0; d < SIZE; d += TILE_INPUTS, queries += TILE_INPUTS, keys += TILE) {
        _tile_loadd(7, keys, 64);
        _tile_loadd(4, queries, SIZE * 2);
        _tile_dpbf16ps(0, 4, 7);
        if (NUM_TILES > 1) _tile_loadd(5, queries + TILE_ROWS * SIZE, SIZE * 2);
        if (NUM_TILES > 1) _tile_dpbf16ps(1, 5, 7);
        if (NUM_TILES > 2) _tile_loadd(6, queries + 2 * TILE_ROWS * SIZE, SIZE * 2);
        if (NUM_TILES > 2) _tile_dpbf16ps(2, 6, 7);
    }
    _tile_stored(0, scores, stride * 4);
    if (NUM_TILES > 1) _tile_stored(1, scores + TILE_ROWS * stride, stride * 4);
    if (NUM_TILES > 2) _tile_stored(2, scores + 2 * TILE_ROWS * stride, stride * 4);
}

// Adds weighted values of `num_blocks` blocks to the sums of TILE_ROWS queries. weights: in bfloat16, `stride` numbers from
// one query's to the next one's. tiles: SIZE / 16 for each block.
template <int SIZE>
static inline void add_blocks(const half_t* weights, long stride, const half_t* tiles, long num_blocks, float* sums) {
    constexpr int COLUMNS = SIZE / 16;
    for (int column = 0; column < COLUMNS; column += 4) {
        const bool is_four = column + 4 <= COLUMNS;  // else two
        float* part = sums + column * 16;
        _tile_loadd(0, part, SIZE * 4);
        _tile_loadd(1, part + 16, SIZE * 4);
        if (is_four) _tile_loadd(2, part + 32, SIZE * 4);
        if (is_four) _tile_loadd(3, part + 48, SIZE * 4);
        const half_t* block = tiles + column * TILE;
        for (long n = 0; n < num_blocks; n++, block += COLUMNS * TILE) {
            _tile_loadd(6, weights + n * VALUES, stride * 2);
            _tile_loadd(4, block, 64);
            _tile_dpbf16ps(0, 6, 4);
            _tile_loadd(5, block + TILE, 64);
            _tile_dpbf16ps(1, 6, 5);
            if (is_four) {
                _tile_loadd(4, block + 2 * TILE, 64);
                _tile_dpbf16ps(2, 6, 4);
                _tile_loadd(5, block + 3 * TILE, 64);
                _tile_dpbf16ps(3, 6, 5);
            }
        }
        _tile_stored(0, part, SIZE * 4);
        _tile_stored(1, part + 16, SIZE * 4);
        if (is_four) _tile_stored(2, part + 32, SIZE * 4);
        if (is_four) _tile_stored(3, part + 48, SIZE * 4);
    }
}

// Adds the values of a row's own blocks, from key `from` on, to the sums of its queries.
template <int SIZE>
static inline void add_own_blocks(const Task& task, long row, long from, const float* scores, float* sums) {
    alignas(64) half_t tiles[SIZE / 16 * TILE], weights[TILE] = {}, nothing[SIZE] = {};
    alignas(64) float own[TILE_ROWS * SIZE] = {};
    const long end = task.end_of(row), length = task.length, stride = task.stride();
    const int* seen = task.seen_by(row);
    for (long first = 0; first < task.num_groups; first += TILE_ROWS) {
        const long count = task.num_groups - first < TILE_ROWS ? task.num_groups - first : TILE_ROWS;
        memcpy(own, sums + first * SIZE, sizeof(float) * count * SIZE);
        for (long key = from; key < end; key += VALUES) {
            const half_t* values[VALUES];
            for (long n = 0; n < VALUES; n++) {
                const long place = key + n < length ? key + n : key + n < end ? length + seen[key + n - length] : -1;
                values[n] = place < 0 ? nothing : task.value(place);
            }
            tile_values<SIZE>(values, tiles);
            for (long q = 0; q < count; q++)
                memcpy(weights + q * VALUES, (const half_t*)(scores + (first + q) * stride) + key, sizeof(half_t) * VALUES);
            finish_writing();
            add_blocks<SIZE>(weights, VALUES, tiles, 1, own);
        }
        memcpy(sums + first * SIZE, own, sizeof(float) * count * SIZE);
    }
}

// Turns scores [first, last) into weights that add up to 1 / sum; returns 1 / sum. Whole vectors are computed: what lies
// beside these scores, up to the next multiple of LANES, is written as well. sink: a score whose weight counts in the sum.
static inline float soften(float* scores, long first, long last, float sink) {
    const long begin = first / LANES * LANES, end = (last + LANES - 1) / LANES * LANES;
    for (long key = begin; key < first; key++) scores[key] = -INFINITY;
    for (long key = last; key < end; key++) scores[key] = -INFINITY;
    float most = sink, sum = 0.0f;
#pragma omp simd reduction(max : most)
    for (long key = begin; key < end; key++) most = larger(most, scores[key]);
#pragma omp simd reduction(+ : sum)
    for (long key = begin; key < end; key++) {
        scores[key] = exponential(scores[key] - most);
        sum += scores[key];
    }
    if (sink > -INFINITY) sum += exponential(sink - most);
    return 1.0f / sum;
}

// room: memory for the scores of MOST_QUERIES queries, in whose place their weights are put.
template <int KEY_SIZE, int VALUE_SIZE>
static void attend_by_matrix_unit(const Task& task, float* room) {
    // Blocks of the prefix, whose tiles stay in the first cache.
    constexpr long MOST_BLOCKS = 256 * 64 / VALUE_SIZE / VALUES > 0 ? 256 * 64 / VALUE_SIZE / VALUES : 1;
    constexpr long KEY_TILES = KEY_SIZE / TILE_INPUTS, VALUE_TILES = MOST_BLOCKS * VALUE_SIZE / 16;
    const long num_queries = task.num_queries(), num_tiles = (num_queries + TILE_ROWS - 1) / TILE_ROWS;
    const long num_keys = task.num_keys(), stride = task.stride(), whole = task.length / VALUES * VALUES;
    const long from = task.begin_of_all() / VALUES * VALUES;
    alignas(64) half_t queries[MOST_QUERIES * KEY_SIZE];
    alignas(64) half_t tiles[(KEY_TILES > VALUE_TILES ? KEY_TILES : VALUE_TILES) * TILE];
    alignas(64) float sums[MOST_QUERIES * VALUE_SIZE] = {};
    float factors[MOST_QUERIES];
    memset(queries, 0, sizeof(half_t) * num_tiles * TILE_ROWS * KEY_SIZE);
    for (long q = 0; q < num_queries; q++)
        for (int d = 0; d < KEY_SIZE; d += LANES)
            store_rounded(queries + q * KEY_SIZE + d, load(task.query_of(q) + d) * broadcast(task.scale));
    for (long key = from; key < num_keys; key += TILE_ROWS) {
        tile_keys<KEY_SIZE>(task.keys + key * KEY_SIZE, num_keys - key, tiles);
        finish_writing();
        if (num_tiles == 1) score_tiles<KEY_SIZE, 1>(queries, tiles, room + key, stride);
        if (num_tiles == 2) score_tiles<KEY_SIZE, 2>(queries, tiles, room + key, stride);
        if (num_tiles == 3) score_tiles<KEY_SIZE, 3>(queries, tiles, room + key, stride);
    }
    for (long q = 0; q < num_queries; q++) {
        float* scores = room + q * stride;
        const long row = task.row_of(q), begin = task.begin_of(row), end = task.end_of(row);
        if (task.softcap > 0.0f)
            for (long key = from; key < num_keys; key++)
                scores[key] = task.softcap * hyperbolic_tangent(scores[key] / task.softcap);
        task.follow_path(row, scores, 0);
        factors[q] = soften(scores, begin, end, task.sink_of(q));
        for (long key = from; key < begin; key++) scores[key] = 0.0f;
        long filled = end;
        for (; filled % VALUES; filled++) scores[filled] = 0.0f;
        for (long key = from; key < filled; key += LANES) store_rounded((half_t*)scores + key, load(scores + key));
    }
    for (long key = from; key < whole; key += MOST_BLOCKS * VALUES) {
        const long num_blocks = (whole - key) / VALUES < MOST_BLOCKS ? (whole - key) / VALUES : MOST_BLOCKS;
        for (long block = 0; block < num_blocks; block++) {
            const half_t* values[VALUES];
            for (long n = 0; n < VALUES; n++) values[n] = task.value(key + block * VALUES + n);
            tile_values<VALUE_SIZE>(values, tiles + block * (VALUE_SIZE / 16) * TILE);
        }
        finish_writing();
        for (long t = 0; t < num_tiles; t++)
            add_blocks<VALUE_SIZE>((const half_t*)(room + t * TILE_ROWS * stride) + key, 2 * stride, tiles, num_blocks,
                                   sums + t * TILE_ROWS * VALUE_SIZE);
    }
    for (long row = task.first; row < task.last; row++) {
        const long q = (row - task.first) * task.num_groups;
        add_own_blocks<VALUE_SIZE>(task, row, from < whole ? whole : from, room + q * stride,
                                   sums + q * VALUE_SIZE);
    }
    for (long q = 0; q < num_queries; q++) {
        float* to = task.out_of(q);
        for (long d = 0; d < VALUE_SIZE; d++) to[d] = sums[q * VALUE_SIZE + d] * factors[q];
    }
}

#endif
