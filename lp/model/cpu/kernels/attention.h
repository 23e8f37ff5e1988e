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

// A run's rows from `first` on in chunks of about the same size, and the query heads of a key/value head in parts: tasks.
struct Tasks {
    const Run& run;
    long num_heads, num_groups, begin, count, num_chunks, num_parts;

    // num_threads: which this run's tasks are for. A task turns all keys, so there are no more than needed.
    Tasks(const Run& run, long first, long num_heads, long num_groups, long num_threads)
        : run(run), num_heads(num_heads), num_groups(num_groups), begin(run.first < first ? first : run.first),
          count(run.last < begin ? 0 : run.last - begin) {
        num_parts = (num_groups + MOST_QUERIES - 1) / MOST_QUERIES;
        const long most = MOST_QUERIES / ((num_groups + num_parts - 1) / num_parts);
        num_chunks = (count + most - 1) / most;
        while (size() % num_threads && num_chunks * ENOUGH_ROWS <= count) num_chunks++;
        while (num_chunks * num_heads * (num_parts + 1) <= num_threads && num_parts < num_groups && count) num_parts++;
    }

    long size() const { return num_chunks * num_heads * num_parts; }
    long start(long chunk) const { return begin + count * chunk / num_chunks; }
    // The first query head of a part, of all query heads.
    long head(long head, long part) const { return head * num_groups + num_groups * part / num_parts; }
    // What a task costs, about: its keys are turned, and each query meets each of them.
    long cost(const Step& step, long chunk) const {
        const long last = start(chunk + 1), num_keys = step.sequences[run.sequence].length + step.rows[last - 1].number + 1;
        return num_keys * (TURNING + (last - start(chunk)) * num_groups / num_parts);
    }
};

// The share of one of `num_threads` threads: some of the heads and rows, for about as much work as the others have. a: the
// queries, where they begin in a row, the numbers of a row, the output, the layer, the sinks of all query heads or null,
// the numbers from one query head to the next, key/value heads, query heads of each, scale, window, chunk size, softcap.
// IN_KEYS: whether values are the first numbers of keys.
template <int KEY_SIZE, int VALUE_SIZE, bool IN_KEYS>
static void attend(const Step& step, const long* a, long first, float* room, long thread, long num_threads) {
    const float *query = (const float*)a[0] + a[1], *sinks = (const float*)a[5];
    const long query_width = a[2], layer = a[4], query_stride = a[6], num_heads = a[7], num_groups = a[8];
    const long window = a[10], chunk_size = a[11];
    const float scale = float_of(a[9]), softcap = float_of(a[12]);
    float* out = (float*)a[3];
    constexpr long VALUE_STRIDE = IN_KEYS ? KEY_SIZE : VALUE_SIZE;
    const long threads_of_run = (num_threads + step.num_runs - 1) / step.num_runs;
    long whole = 0, done = 0;
    for (long n = 0; n < step.num_runs; n++) {
        const Tasks tasks(step.runs[n], first, num_heads, num_groups, threads_of_run);
        for (long chunk = 0; chunk < tasks.num_chunks; chunk++)
            whole += num_heads * tasks.num_parts * tasks.cost(step, chunk);
    }
    for (long n = 0; n < step.num_runs; n++) {
        const Tasks tasks(step.runs[n], first, num_heads, num_groups, threads_of_run);
        const long sequence = step.runs[n].sequence, capacity = step.sequences[sequence].capacity;
        const weight_t *keys = step.keys(sequence, layer), *values = IN_KEYS ? keys : step.values(sequence, layer);
        for (long number = 0; number < tasks.size(); number++) {
            const long chunk = number / (num_heads * tasks.num_parts), cost = tasks.cost(step, chunk);
            const long head = number / tasks.num_parts % num_heads, part = number % tasks.num_parts;
            const bool is_own = (done + cost / 2) * num_threads / whole == thread;
            done += cost;
            if (!is_own) continue;
            const long first_head = tasks.head(head, part);
            const Task task{query,
                            query_width,
                            query_stride,
                            out,
                            keys + head * capacity * KEY_SIZE,
                            values + head * capacity * VALUE_STRIDE,
                            VALUE_STRIDE,
                            step,
                            step.sequences[sequence].length,
                            VALUE_SIZE,
                            first_head,
                            tasks.head(head, part + 1) - first_head,
                            num_heads * num_groups,
                            tasks.start(chunk),
                            tasks.start(chunk + 1),
                            scale,
                            window,
                            chunk_size,
                            softcap,
                            sinks};
            attend_task<KEY_SIZE, VALUE_SIZE>(task, room);
        }
    }
}
