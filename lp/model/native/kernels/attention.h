// Attention of a tree's rows over the KV cache: each row sees the prefix, its ancestors and itself.
//
// For every row and head all sums are made in an order by the positions of the keys, whether they lie in the prefix or in
// the tree. So a row's result is the same to the last bit wherever the prefix ends and whatever other rows there are.
#pragma once

#include "matrix_attention.h"
#include "vector_attention.h"

#define ENOUGH_ROWS 2  // for a task, if there are too few for all threads

// Writes one row's keys or values behind the prefix.
static inline void keep(weight_t* cache, const Step& step, long row, const float* from, long stride, long num_heads,
                        long size) {
    for (long head = 0; head < num_heads; head++) {
        weight_t* to = cache + (head * step.capacity + step.length + row) * size;
        for (long d = 0; d < size; d++) to[d] = rounded(from[head * stride + d]);
    }
}

template <int SIZE>
static void attend_task(const Task& task, float* room) {
#if HAS_MATRIX_UNIT
    if constexpr (SIZE % TILE_INPUTS == 0)
        if (uses_matrix_unit) return attend_by_matrix_unit<SIZE>(task, room);
#endif
    attend_by_vectors<SIZE>(task, room);
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
    for (long number = thread; number < num_heads * num_chunks; number += num_threads) {
        const long chunk = number / num_heads, begin = first + count * chunk / num_chunks,
                   end = first + count * (chunk + 1) / num_chunks;
        const long head = number % num_heads, at = head * step.capacity * SIZE;
        const Task task{query,     query_width, query_stride, out,        step.keys[layer] + at, step.values[layer] + at,
                        step,      SIZE,        head,         num_heads,  num_groups,            begin,
                        end,       scale,       window,       softcap};
        attend_task<SIZE>(task, room);
    }
}
