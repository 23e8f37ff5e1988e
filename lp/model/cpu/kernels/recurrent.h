// Recurrent layers: each row's state is its parent's, advanced by the row.
//
// A layer's state has parts: the last inputs of a convolution, [K - 1, C] in the model's format, and a matrix for each
// head, [H, D, E] in float32. Nothing writes to the state before a step; those after some first rows are written
// elsewhere. What later rows leave is enough to advance the state by any path of them. Rows are computed one after the
// other along their paths, so a row's result does not depend on how many rows there are.
#pragma once

#include <type_traits>

#include "step.h"

// Columns of a matrix that a thread advances at a time, which lp/model/cpu/states.py knows as well, and channels that it
// convolves at least.
static constexpr long MATRIX_COLUMNS = 32, CHANNELS = 16;

template <class T>
static inline weight_t stored(T value) {
    if constexpr (std::is_same_v<T, weight_t>) return value;
    else return rounded(value);
}

// a: x, its start and width; what is written; taps [K, C], biases or null, C and K; the part's number, and where it lies
// in a state and in what rows leave.
static void convolve(const Step& step, const long* a, long thread, long num_threads) {
    const float* x = (const float*)a[0] + a[1];
    float* out = (float*)a[3];
    const float *taps = (const float*)a[4], *bias = (const float*)a[5];
    const long width = a[2], size = a[6], num_before = a[7] - 1, num_groups = (size + CHANNELS - 1) / CHANNELS;
    const long begin = num_groups * thread / num_threads * CHANNELS;
    const long end_of_groups = num_groups * (thread + 1) / num_threads * CHANNELS;
    const long end = end_of_groups < size ? end_of_groups : size;
    for (long n = 0; n < step.num_sequences; n++) {
        const Sequence& sequence = step.sequences[n];
        const SequenceStates& states = step.of_states[n];
        const weight_t* before = (const weight_t*)step.state_before(n, a[8]);
        // Hands over the input of the row that is `back` rows above a row of the sequence, itself for 0.
        const auto with_input = [&](long own, long back, auto use) {
            const long row = sequence.row_of(own), above = step.num_seen(row) - 1 - back;
            if (above >= 0) use(x + sequence.row_of(step.seen_by(row)[above]) * width);
            else use(before + (num_before + above) * size);
        };
        for (long own = 0; own < sequence.num_rows; own++) {
            float* to = out + sequence.row_of(own) * size;
            for (long c = begin; c < end; c++) to[c] = bias ? bias[c] : 0.0f;
            for (long back = num_before; back >= 0; back--) {
                const float* tap = taps + (num_before - back) * size;
                with_input(own, back, [&](const auto* from) {
                    for (long c = begin; c < end; c++) to[c] += number(stored(from[c])) * tap[c];
                });
            }
            if (own < sequence.num_rows - states.num_left) continue;
            weight_t* left = (weight_t*)states.left_of(a[10]) + (own - sequence.num_rows + states.num_left) * size;
            with_input(own, 0, [&](const auto* from) {
                for (long c = begin; c < end; c++) left[c] = stored(from[c]);
            });
        }
        for (long stop = states.first_stop; stop < states.last_stop; stop++) {
            weight_t* after = (weight_t*)(step.stops[stop].state + a[9]);
            for (long back = 0; back < num_before; back++)
                with_input(step.stops[stop].num_rows - 1, back, [&](const auto* from) {
                    weight_t* to = after + (num_before - 1 - back) * size;
                    for (long c = begin; c < end; c++) to[c] = stored(from[c]);
                });
        }
    }
}

// Up to LANES numbers; the rest are 0.
static inline Vector load_some(const float* from, long count) {
    if (count >= LANES) return load(from);
    Vector some{};
    memcpy(&some, from, count > 0 ? count * 4 : 0);
    return some;
}

static inline void store_some(float* to, Vector value, long count) {
    if (count >= LANES) return store(to, value);
    memcpy(to, &value, count > 0 ? count * 4 : 0);
}

static inline Vector exponentials(Vector x) {
    Vector result;
    for (int l = 0; l < LANES; l++) result[l] = exponential(x[l]);
    return result;
}

// Numbers of a matrix after a row, of what they were before.
static inline Vector advanced(Vector before, Vector decay, Vector key, Vector added) {
    return multiply_add(key, added, before * decay);
}

// Some numbers of each row and head.
struct Heads {
    const float* numbers;
    long width, stride;

    Heads(const long* a) : numbers((const float*)a[0] + a[1]), width(a[2]), stride(a[3]) {}
    const float* of(long row, long head) const { return numbers + row * width + head * stride; }
};

struct Sizes {
    long num_heads, num_key_heads, key_size, size;

    long head_of_keys(long head) const { return head * num_key_heads / num_heads; }
    // What one row leaves: its keys, what it adds, and its decays, or a time for each column.
    long num_left(bool scans) const { return num_key_heads * key_size + num_heads * size + (scans ? size : num_heads); }
};

// a: queries, keys, values, logarithms of decays, and rates or null, each with start, width and stride of heads; what is
// written; H, heads of keys, D and E; the part's number, and where it lies in a state and in what rows leave.
//
// SCANS: there is one head, each of whose numbers has a decay of its own: in the place of the logarithms are times [E],
// and in that of the rates those [D, E] with which times are multiplied.
template <bool SCANS>
struct Matrices : Sizes {
    const Heads queries, keys, values, logs, rates;
    float* out;
    const bool has_rates;
    const long number, state_at, left_at;

    Matrices(const long* a)
        : Sizes{a[21], a[22], a[23], a[24]}, queries(a), keys(a + 4), values(a + 8), logs(a + 12), rates(a + 16),
          out((float*)a[20]), has_rates(!SCANS && a[16]), number(a[25]), state_at(a[26]), left_at(a[27]) {}

    // Runs all rows of a sequence through columns of one head's matrix. room: matrices of MATRIX_COLUMNS columns.
    void run(const Step& step, long sequence, const Visit* visits, long head, long column, float* room) const {
        constexpr long ACROSS = MATRIX_COLUMNS / LANES;
        const Sequence& own = step.sequences[sequence];
        const SequenceStates& states = step.of_states[sequence];
        const long at = head * key_size * size + column, count = size - column < MATRIX_COLUMNS ? size - column : MATRIX_COLUMNS;
        const float* before = (const float*)step.state_before(sequence, number) + at;
        for (long d = 0; d < key_size; d++)
            for (long w = 0; w < ACROSS; w++)
                store(room + d * MATRIX_COLUMNS + w * LANES, load_some(before + d * size + w * LANES, count - w * LANES));
        for (const Visit* visit = visits; visit < visits + own.num_rows; visit++) {
            const long row = own.row_of(visit->row), room_size = key_size * MATRIX_COLUMNS;
            const float *from = room + visit->from * room_size, *key = keys.of(row, head_of_keys(head));
            const float* query = queries.of(row, head_of_keys(head));
            float* to = room + visit->to * room_size;
            const float* times = logs.of(row, head) + (SCANS ? column : 0);
            const float decay = SCANS ? 0.0f : exponential(*times);
            Vector added[ACROSS], sums[ACROSS];
            for (long w = 0; w < ACROSS; w++)
                added[w] = load_some(values.of(row, head) + column + w * LANES, count - w * LANES);
            if (has_rates) {
                for (long w = 0; w < ACROSS; w++) sums[w] = Vector{};
                for (long d = 0; d < key_size; d++)
                    for (long w = 0; w < ACROSS; w++)
                        sums[w] = multiply_add(broadcast(key[d]), load(from + d * MATRIX_COLUMNS + w * LANES), sums[w]);
                const Vector rate = broadcast(*rates.of(row, head)), less = broadcast(-decay);
                for (long w = 0; w < ACROSS; w++) added[w] = multiply_add(less, sums[w], added[w]) * rate;
            }
            for (long w = 0; w < ACROSS; w++) sums[w] = Vector{};
            Vector kept = broadcast(decay);
            for (long d = 0; d < key_size; d++)
                for (long w = 0; w < ACROSS; w++) {
                    const long here = d * MATRIX_COLUMNS + w * LANES;
                    if constexpr (SCANS) {
                        const float* own = rates.numbers + d * size + column + w * LANES;
                        const long left = count - w * LANES;
                        kept = exponentials(load_some(times + w * LANES, left) * load_some(own, left));
                    }
                    const Vector after = advanced(load(from + here), kept, broadcast(key[d]), added[w]);
                    store(to + here, after);
                    sums[w] = multiply_add(broadcast(query[d]), after, sums[w]);
                }
            float* answer = out + (row * num_heads + head) * size + column;
            for (long w = 0; w < ACROSS; w++) store_some(answer + w * LANES, sums[w], count - w * LANES);
            leave(states, visit->row - own.num_rows + states.num_left, head, column, count, key, added,
                  SCANS ? times : &decay);
            for (long stop = states.first_stop; stop < states.last_stop; stop++) {
                if (step.stops[stop].num_rows != visit->row + 1) continue;
                float* state = (float*)(step.stops[stop].state + state_at) + at;
                for (long d = 0; d < key_size; d++) memcpy(state + d * size, to + d * MATRIX_COLUMNS, count * 4);
            }
        }
    }

    // Writes a row's share of what rows leave. place: its number among those that do; less than 0 for a row that does not.
    // decays: the head's, or the columns' times.
    void leave(const SequenceStates& states, long place, long head, long column, long count, const float* key,
               const Vector* added, const float* decays) const {
        if (place < 0) return;
        float* left = (float*)states.left_of(left_at) + place * num_left(SCANS);
        float* adds = left + num_key_heads * key_size;
        memcpy(adds + head * size + column, added, count * 4);
        if (SCANS) memcpy(adds + size + column, decays, count * 4);
        if (column > 0) return;
        if (!SCANS) adds[num_heads * size + head] = *decays;
        if (head == 0 || head_of_keys(head) != head_of_keys(head - 1))
            memcpy(left + head_of_keys(head) * key_size, key, key_size * 4);
    }
};

template <bool SCANS>
static void recur(const Step& step, const long* a, float* room, long thread, long num_threads) {
    const Matrices<SCANS> matrices(a);
    const long num_blocks = (matrices.size + MATRIX_COLUMNS - 1) / MATRIX_COLUMNS, num_tasks = matrices.num_heads * num_blocks;
    const Visit* visits = step.visits;
    for (long n = 0; n < step.num_sequences; visits += step.sequences[n++].num_rows)
        for (long task = num_tasks * thread / num_threads; task < num_tasks * (thread + 1) / num_threads; task++)
            matrices.run(step, n, visits, task / num_blocks, task % num_blocks * MATRIX_COLUMNS, room);
}

// Advances a matrix [H, D, E] by some of the rows that have left something, in the order of their path. rates: of a scan.
template <bool SCANS>
static void replay(const float* before, float* after, const float* left, const long* rows, const float* rates, long num_rows,
                   const Sizes& sizes, long num_threads) {
    const long num_left = sizes.num_left(SCANS), size = sizes.size, key_size = sizes.key_size;
    const long num_keys = sizes.num_key_heads * key_size, all_added = sizes.num_heads * size;
#pragma omp parallel num_threads(num_threads)
    {
        const FlushSmall flush_small;
#pragma omp for collapse(2)
        for (long head = 0; head < sizes.num_heads; head++)
            for (long column = 0; column < size; column += LANES)
                for (long n = 0; n < num_rows; n++) {
                    const float* own = left + rows[n] * num_left;
                    const float *keys = own + sizes.head_of_keys(head) * key_size, *added = own + num_keys + head * size;
                    const float* decays = own + num_keys + all_added;
                    const Vector adds = load_some(added + column, size - column);
                    Vector decay = SCANS ? load_some(decays + column, size - column) : broadcast(decays[head]);
                    const Vector times = decay;
                    for (long d = 0; d < key_size; d++) {
                        const long at = (head * key_size + d) * size + column;
                        const Vector was = load_some((n ? after : before) + at, size - column);
                        if (SCANS) decay = exponentials(times * load_some(rates + d * size + column, size - column));
                        store_some(after + at, advanced(was, decay, broadcast(keys[d]), adds), size - column);
                    }
                }
    }
}
