// Attention by the processor's vectors, in float32.
//
// The positions of a path are taken in blocks. Within one the values are added in the order of their positions, with
// weights relative to the block's largest score, and then the blocks in their order (Dao, FlashAttention-2, arXiv
// 2307.08691, section 3.1). So the threads share a head's blocks, and no bit of a result depends on how.
#pragma once

#include <algorithm>
#include <type_traits>

#include "attention_task.h"

#define KEY_VECTORS 4     // in a tile of scores
#define BYTES_AHEAD 4096  // of keys, which are fetched before they are turned
#define VALUES_AHEAD 8    // which are fetched before they are added
// QUERIES: in a tile of scores. NUMBERS: of a key, whose products with all queries are added at a time, so that those of a
// tile's keys stay in the first cache.
#if LANES == 16
#define QUERIES 6
#define NUMBERS 128
#elif LANES == 8
#define QUERIES 3
#define NUMBERS 192
#else
#define QUERIES 4
#define NUMBERS 384
#endif

// Asks the processor for memory that is read later.
static inline void fetch(const void* from, long num_bytes) {
    for (long byte = 0; byte < num_bytes; byte += 64) __builtin_prefetch((const char*)from + byte, 0, 3);
}

// Calls tile(std::integral_constant<int, count>, first) for a count of at most COUNT.
template <int COUNT, class Tile>
static inline void of_count(long count, long first, Tile tile) {
    if (count == COUNT) return tile(std::integral_constant<int, COUNT>{}, first);
    if constexpr (COUNT > 1) of_count<COUNT - 1>(count, first, tile);
}

// The same for all tiles of the queries.
template <class Tile>
static inline void in_query_tiles(long num_queries, Tile tile) {
    in_tiles(num_queries, QUERIES, [&](long first, long count) { of_count<QUERIES>(count, first, tile); });
}

// The numbers of LANES keys turned: to[d][key]. SIZE numbers of each key. IS_PART: only the first `count` are there, and
// the others are 0.
template <int SIZE, bool IS_PART>
static inline void turn_some_keys(const weight_t* keys, long count, float* to) {
    constexpr int AHEAD = BYTES_AHEAD / (int)(SIZE * sizeof(weight_t));
    const weight_t* ahead = keys + (AHEAD > LANES ? AHEAD : LANES) * SIZE;
    int d = 0;
    for (; d + LANES <= SIZE; d += LANES) {
        Vector rows[LANES];
        fetch(ahead + d * LANES, LANES * LANES * sizeof(weight_t));
        for (int n = 0; n < LANES; n++)
            rows[n] = !IS_PART || n < count ? load_numbers(keys + n * SIZE + d) : Vector{};
        turn(rows);
        for (int n = 0; n < LANES; n++) store(to + (d + n) * KEYS, rows[n]);
    }
    if constexpr (SIZE % LANES)
        for (; d < SIZE; d++)
            for (int n = 0; n < LANES; n++) to[d * KEYS + n] = !IS_PART || n < count ? number(keys[n * SIZE + d]) : 0.0f;
}

// The numbers of up to KEYS keys turned, and zeros until the last tile of scores is full.
template <int SIZE>
static inline void turn_keys(const weight_t* keys, long count, float* to) {
    constexpr long IN_TILE = KEY_VECTORS * LANES;
    const long end = (count + IN_TILE - 1) / IN_TILE * IN_TILE;
    long key = 0;
    for (; key + LANES <= count; key += LANES) turn_some_keys<SIZE, false>(keys + key * SIZE, LANES, to + key);
    for (; key < end; key += LANES) turn_some_keys<SIZE, true>(keys + key * SIZE, count - key, to + key);
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

// Scores of all queries with up to KEYS keys, from `offset` on.
template <int SIZE>
static inline void score_all(const float* const* queries, long num_queries, const float* turned, long count,
                             float* const* scores, long offset, float scale, float softcap) {
    for (long part = 0; part < count; part += KEY_VECTORS * LANES)
        for (int first = 0; first < SIZE; first += NUMBERS)
            in_query_tiles(num_queries, [&](auto tile, long q) {
                score<tile, SIZE>(queries + q, turned + part, scores + q, offset + part, first, scale, softcap);
            });
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
    for (long n = 0; n < count; n++) {
        fetch(task.value(key + n + VALUES_AHEAD), SIZE * sizeof(weight_t));
        widen_one<SIZE, PADDED>(task.value(key + n), room + n * PADDED);
    }
    return {room, PADDED};
}

// Adds weighted values to COUNT outputs, at numbers [d, d + WIDE vectors). bytes_fetched: of a value to come, with each.
template <int COUNT, int WIDE>
static inline void add_values(float* const* weights, long first, Values values, long count, float* const* outs, int d,
                              long bytes_fetched) {
    Vector sums[COUNT][WIDE];
    for (int q = 0; q < COUNT; q++)
        for (int v = 0; v < WIDE; v++) sums[q][v] = load(outs[q] + d + v * LANES);
    for (long key = 0; key < count; key++) {
        if (bytes_fetched) fetch(values.numbers + (key + VALUES_AHEAD) * values.stride, bytes_fetched);
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

// The same for all outputs and numbers, of which as many are taken at a time as stay in the first cache. bytes_fetched: of
// each value, where values lie in the cache of keys and values.
template <int PADDED>
static inline void add_all_values(float* const* weights, long first, Values values, long count, float* const* outs,
                                  long num_queries, long bytes_fetched) {
    constexpr int WIDE = KEY_VECTORS * LANES;
    for (int d = 0; d + WIDE <= PADDED; d += WIDE)
        in_query_tiles(num_queries, [&](auto tile, long q) {
            add_values<tile, KEY_VECTORS>(weights + q, first, values, count, outs + q, d, d || q ? 0 : bytes_fetched);
        });
    if constexpr (PADDED % WIDE)
        for (int d = PADDED / WIDE * WIDE; d < PADDED; d += LANES)
            in_query_tiles(num_queries, [&](auto tile, long q) {
                add_values<tile, 1>(weights + q, first, values, count, outs + q, d, 0);
            });
}

// Lower than all scores, and finite: the difference of two is a number.
static const float LOWEST = -3e38f;

// Turns the scores [first, last) of a block into weights relative to the largest, and all others into 0. Returns their sum;
// without any, `most` is LOWEST.
static inline float weigh(float* scores, long first, long last, float* most) {
    for (long key = 0; key < first; key++) scores[key] = LOWEST;
    for (long key = last < first ? first : last; key < KEYS_OF_BLOCK; key++) scores[key] = LOWEST;
    float largest = LOWEST, sum = 0.0f;
#pragma omp simd reduction(max : largest)
    for (long key = 0; key < KEYS_OF_BLOCK; key++) largest = larger(largest, scores[key]);
#pragma omp simd reduction(+ : sum)
    for (long key = 0; key < KEYS_OF_BLOCK; key++) {
        const float weight = exponential(scores[key] - largest);
        scores[key] = scores[key] > LOWEST ? weight : 0.0f;
        sum += scores[key];
    }
    *most = largest;
    return sum;
}

// For each query of a task the largest score so far, the sum of the weights and the weighted values, which are relative to
// that score.
template <int PADDED>
struct WeightedSums {
    float most[MOST_QUERIES], totals[MOST_QUERIES], outs[MOST_QUERIES * PADDED];

    void clear(long num_queries) {
        for (long q = 0; q < MOST_QUERIES; q++) most[q] = LOWEST, totals[q] = 0.0f;
        memset(outs, 0, sizeof(float) * num_queries * PADDED);
    }
};

// By what the weights so far and those of one more block are multiplied.
struct Factors {
    float before[MOST_QUERIES], added[MOST_QUERIES];
};

// Adds a block's largest scores and totals. In whole vectors and never inlined, so that the same instructions compute all
// queries, whether one thread adds all blocks or several put theirs together.
static __attribute__((noinline)) void add_weights(float* most, float* totals, const float* block_most,
                                                  const float* block_totals, long num_queries, Factors& factors) {
    for (long begin = 0; begin < num_queries; begin += LANES)
#pragma omp simd
        for (long q = begin; q < begin + LANES; q++) {
            const float largest = larger(most[q], block_most[q]);
            factors.before[q] = exponential(most[q] - largest);
            factors.added[q] = exponential(block_most[q] - largest);
            totals[q] = totals[q] * factors.before[q] + block_totals[q] * factors.added[q];
            most[q] = largest;
        }
}

// What the weighted values are multiplied by at the end. sink: a score whose value is 0. Never inlined, as `add_weights`.
static __attribute__((noinline)) float factor_of(float most, float total, float sink) {
    const float largest = larger(most, sink), scale = exponential(most - largest);
    return scale / (total * scale + (sink > -INFINITY ? exponential(sink - largest) : 0.0f));
}

// Adds a block's weighted values for one query.
template <int PADDED>
static inline void add_block(float* outs, const float* block_outs, float before, float added) {
    for (int d = 0; d < PADDED; d += LANES)
        store(outs + d, multiply_add(broadcast(added), load(block_outs + d), load(outs + d) * broadcast(before)));
}

// A task's attention over blocks of its keys, the first of which is `first_block`. The first `num_blocks` are the same for
// all rows; the piece after them is all that follows. room: as much as `room_for` says.
template <int KEY_SIZE, int VALUE_SIZE>
class VectorAttention {
   public:
    static constexpr int PADDED = (VALUE_SIZE + LANES - 1) / LANES * LANES;
    typedef WeightedSums<PADDED> Sum;

    VectorAttention(const Task& task, long first_block, long num_blocks, float* room)
        : task_(task), num_queries_(task.num_queries()), first_block_(first_block), num_blocks_(num_blocks), room_(room) {
        for (long q = 0; q < num_queries_; q++) {
            queries_[q] = task.query_of(q);
            outs_[q] = block_.outs + q * PADDED;
        }
    }

    // Floats of room for the scores with so many keys.
    static long room_for(long num_keys) {
        return MOST_QUERIES * ((num_keys + KEYS_OF_BLOCK - 1) / KEYS_OF_BLOCK) * KEYS_OF_BLOCK;
    }

    static long num_blocks_of_rest(const Task& task, long from) {
        long end = from;
        for (long row = task.first; row < task.last; row++) end = task.end_of(row) > end ? task.end_of(row) : end;
        return (end - from + KEYS_OF_BLOCK - 1) / KEYS_OF_BLOCK;
    }

    // Adds pieces of work [begin, end) to the sums; or each block to sums of its own, if `is_apart`.
    void add(long begin, long end, Sum* sums, bool is_apart) {
        if (!is_apart) sums->clear(num_queries_);
        for (long piece = begin; piece < end; piece++)
            if (piece < num_blocks_) sums = add_shared((first_block_ + piece) * KEYS_OF_BLOCK, sums, is_apart);
            else sums = add_rest((first_block_ + piece) * KEYS_OF_BLOCK, sums, is_apart);
    }

    // Copies the sums of queries [first, last).
    static void copy(const Sum& from, Sum& to, long first, long last) {
        memcpy(to.most, from.most, sizeof from.most);
        memcpy(to.totals, from.totals, sizeof from.totals);
        memcpy(to.outs + first * PADDED, from.outs + first * PADDED, sizeof(float) * (last - first) * PADDED);
    }

    // Adds the sums of one more block, for queries [first, last).
    static void merge(Sum& sums, const Sum& block, long num_queries, long first, long last) {
        Factors factors;
        add_weights(sums.most, sums.totals, block.most, block.totals, num_queries, factors);
        for (long q = first; q < last; q++)
            add_block<PADDED>(sums.outs + q * PADDED, block.outs + q * PADDED, factors.before[q], factors.added[q]);
    }

    // Writes the outputs of queries [first, last).
    static void finish(const Task& task, const Sum& sums, long first, long last) {
        for (long q = first; q < last; q++) {
            const float factor = factor_of(sums.most[q], sums.totals[q], task.sink_of(q));
            float* to = task.out_of(q);
            for (long d = 0; d < VALUE_SIZE; d++) to[d] = sums.outs[q * PADDED + d] * factor;
        }
    }

   private:
    void score_keys(long key, long count, float* const* scores, long offset) {
        turn_keys<KEY_SIZE>(task_.keys + key * KEY_SIZE, count, turned_);
        score_all<KEY_SIZE>(queries_, num_queries_, turned_, count, scores, offset, task_.scale, task_.softcap);
    }

    // Turns the scores of a block, whose first key is `block`, into weights. offset: of the first score.
    void weigh_block(float* const* scores, long block, long offset) {
        const auto in_block = [&](long position) { return std::clamp(position - block, 0L, (long)KEYS_OF_BLOCK); };
        for (long q = 0; q < num_queries_; q++) {
            const long row = task_.row_of(q), begin = in_block(task_.begin_of(row)), end = in_block(task_.end_of(row));
            block_.totals[q] = weigh(scores[q] + offset, begin, end, block_.most + q);
        }
        memset(block_.outs, 0, sizeof(float) * num_queries_ * PADDED);
    }

    // Adds the values of keys [key, end), which all rows see in this order. offset: of their weights.
    void add_shared_values(long key, long end, float* const* weights, long offset) {
        for (; key < end; key += KEYS, offset += KEYS) {
            const long count = end - key < KEYS ? end - key : KEYS;
            const Values values = widen<VALUE_SIZE, PADDED>(task_, key, count, turned_);
            const long bytes_fetched = values.numbers == turned_ ? 0 : PADDED * sizeof(float);
            add_all_values<PADDED>(weights, offset, values, count, outs_, num_queries_, bytes_fetched);
        }
    }

    // Adds the block's sums to others, or stores them. Returns where the next block's are to be added.
    Sum* add_sums(Sum* sums, bool is_apart) {
        if (is_apart) copy(block_, *sums, 0, num_queries_);
        else merge(*sums, block_, num_queries_, 0, num_queries_);
        return sums + is_apart;
    }

    // A block that all rows see alike.
    Sum* add_shared(long block, Sum* sums, bool is_apart) {
        alignas(64) float room[MOST_QUERIES * KEYS_OF_BLOCK];
        float* scores[MOST_QUERIES];
        for (long q = 0; q < num_queries_; q++) scores[q] = room + q * KEYS_OF_BLOCK;
        for (long key = 0; key < KEYS_OF_BLOCK; key += KEYS) score_keys(block + key, KEYS, scores, key);
        weigh_block(scores, block, 0);
        add_shared_values(block, block + KEYS_OF_BLOCK, scores, 0);
        return add_sums(sums, is_apart);
    }

    // All blocks from key `from` on. The keys of a row's path lie in other places than in the path.
    Sum* add_rest(long from, Sum* sums, bool is_apart) {
        const long num_keys = task_.num_keys(), shared = task_.end_of_shared();
        const long stride = (num_keys - from + KEYS_OF_BLOCK - 1) / KEYS_OF_BLOCK * KEYS_OF_BLOCK;
        const long end = from + num_blocks_of_rest(task_, from) * KEYS_OF_BLOCK;
        float* scores[MOST_QUERIES];
        for (long q = 0; q < num_queries_; q++) scores[q] = room_ + q * stride;
        for (long key = from; key < num_keys; key += KEYS)
            score_keys(key, num_keys - key < KEYS ? num_keys - key : KEYS, scores, key - from);
        for (long q = 0; q < num_queries_; q++) task_.follow_path(task_.row_of(q), scores[q], from);
        for (long block = from; block < end; block += KEYS_OF_BLOCK) {
            weigh_block(scores, block, block - from);
            const long end_of_block = block + KEYS_OF_BLOCK, own = shared < block ? block : std::min(shared, end_of_block);
            add_shared_values(block, own, scores, block - from);
            for (long row = task_.first; row < task_.last; row++)
                add_own_values(row, own, end_of_block, scores, from);
            sums = add_sums(sums, is_apart);
        }
        return sums;
    }

    // Adds the values at positions [begin, end) of a row's path. from: the position of the first weight.
    void add_own_values(long row, long begin, long end, float* const* weights, long from) {
        const long q = (row - task_.first) * task_.num_groups, length = task_.length;
        if (end > task_.end_of(row)) end = task_.end_of(row);
        for (; begin < end; begin += KEYS) {
            const long count = end - begin < KEYS ? end - begin : KEYS;
            for (long n = 0; n < count; n++)
                widen_one<VALUE_SIZE, PADDED>(
                    task_.value(begin + n < length ? begin + n : length + task_.seen_by(row)[begin + n - length]),
                    turned_ + n * PADDED);
            add_all_values<PADDED>(weights + q, begin - from, {turned_, PADDED}, count, outs_ + q, task_.num_groups, 0);
        }
    }

    static constexpr int PADDED_KEY = (KEY_SIZE + LANES - 1) / LANES * LANES;

    const Task& task_;
    const long num_queries_, first_block_, num_blocks_;
    float* const room_;
    const float* queries_[MOST_QUERIES];
    float* outs_[MOST_QUERIES];
    alignas(64) Sum block_;
    alignas(64) float turned_[KEYS * (PADDED > PADDED_KEY ? PADDED : PADDED_KEY)];
};
