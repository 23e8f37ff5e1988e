// Attention of the rows of trees over KV caches: each row sees its sequence's prefix, its ancestors and itself.
//
// For every row and head all sums are made in an order by the positions of the keys, whether they lie in the prefix or in
// the tree. So a row's result is the same to the last bit wherever the prefix ends and whatever other rows there are.
#pragma once

#include "matrix_attention.h"
#include "vector_attention.h"

#define ENOUGH_ROWS 2  // for a task, if there are too few for all threads
#define TURNING 16     // queries that cost as much as turning the keys for them

template <int KEY_SIZE, int VALUE_SIZE>
static void attend_task(const Task& task, float* room) {
#if HAS_MATRIX_UNIT
    if constexpr (KEY_SIZE % TILE_INPUTS == 0 && VALUE_SIZE % TILE_INPUTS == 0)
        if (uses_matrix_unit) return attend_by_matrix_unit<KEY_SIZE, VALUE_SIZE>(task, room);
#endif
    attend_by_vectors<KEY_SIZE, VALUE_SIZE>(task, room);
}

// A run's rows from `first` on in chunks of about the same size, each for as many tasks as there are heads.
struct Chunks {
    const Run& run;
    long begin, count, num_chunks;

    // most: rows of a chunk. num_threads: which this run's tasks are for. A task turns all keys, so there are no more
    // than needed.
    Chunks(const Run& run, long first, long most, long num_heads, long num_threads)
        : run(run), begin(run.first < first ? first : run.first), count(run.last < begin ? 0 : run.last - begin) {
        num_chunks = (count + most - 1) / most;
        while (num_chunks * num_heads % num_threads && num_chunks * ENOUGH_ROWS <= count) num_chunks++;
    }

    long start(long chunk) const { return begin + count * chunk / num_chunks; }
    // What a task costs, about: its keys are turned, and each query meets each of them.
    long cost(const Step& step, long chunk, long num_groups) const {
        const long last = start(chunk + 1), num_keys = step.sequences[run.sequence].length + step.rows[last - 1].number + 1;
        return num_keys * (TURNING + (last - start(chunk)) * num_groups);
    }
};

// The share of one of `num_threads` threads: some of the heads and rows, for about as much work as the others have. a: the
// queries, where they begin in a row, the numbers of a row, the output, the layer, the sinks of all query heads or null,
// the numbers from one query head to the next, key/value heads, query heads of each, scale, window, chunk size, softcap.
template <int KEY_SIZE, int VALUE_SIZE>
static void attend(const Step& step, const long* a, long first, float* room, long thread, long num_threads) {
    const float *query = (const float*)a[0] + a[1], *sinks = (const float*)a[5];
    const long query_width = a[2], layer = a[4], query_stride = a[6], num_heads = a[7], num_groups = a[8];
    const long window = a[10], chunk_size = a[11];
    const float scale = float_of(a[9]), softcap = float_of(a[12]);
    float* out = (float*)a[3];
    const long most = MOST_QUERIES / num_groups > 0 ? MOST_QUERIES / num_groups : 1;
    const long threads_of_run = (num_threads + step.num_runs - 1) / step.num_runs;
    long whole = 0, done = 0;
    for (long n = 0; n < step.num_runs; n++) {
        const Chunks chunks(step.runs[n], first, most, num_heads, threads_of_run);
        for (long chunk = 0; chunk < chunks.num_chunks; chunk++)
            whole += num_heads * chunks.cost(step, chunk, num_groups);
    }
    for (long n = 0; n < step.num_runs; n++) {
        const Chunks chunks(step.runs[n], first, most, num_heads, threads_of_run);
        const long sequence = step.runs[n].sequence;
        for (long chunk = 0; chunk < chunks.num_chunks; chunk++) {
            const long cost = chunks.cost(step, chunk, num_groups);
            for (long head = 0; head < num_heads; head++, done += cost) {
                if ((done + cost / 2) * num_threads / whole != thread) continue;
                const long at = head * step.sequences[sequence].capacity;
                const Task task{query,      query_width,
                                query_stride,
                                out,        step.keys(sequence, layer) + at * KEY_SIZE,
                                step.values(sequence, layer) + at * VALUE_SIZE,
                                step,       step.sequences[sequence].length,
                                VALUE_SIZE, head,
                                num_heads,  num_groups,
                                chunks.start(chunk),
                                chunks.start(chunk + 1),
                                scale,      window,
                                chunk_size, softcap,
                                sinks};
                attend_task<KEY_SIZE, VALUE_SIZE>(task, room);
            }
        }
    }
}
