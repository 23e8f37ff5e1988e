// What one thread computes of a layer's attention at a time: a key/value head for some rows.
#pragma once

#include "step.h"

#define KEYS 64            // that are turned at a time; room for scores is a multiple of this
#define KEYS_OF_BLOCK 128  // of a path, whose weighted values are summed before they are added to others: a multiple of KEYS
#define MOST_QUERIES 48    // of one task

// Query heads [first_head, first_head + num_groups), which share a key/value head, for rows [first, last) of a run: at
// most MOST_QUERIES queries, those of a row next to each other. num_heads: all query heads. keys, values: of the key/value
// head. value_stride: numbers from a value to the next one. length: of the prefix. size: numbers of a value. window: keys
// that a row sees at most, 0 for all. chunk_size: a row sees keys of its own chunk of so many positions, 0 for all.
// softcap: 0 for none. sinks: for each query head the score of one more key, whose value is 0; null for none.
struct Task {
    const float* query;
    long query_width, query_stride;
    float* out;
    const weight_t *keys, *values;
    long value_stride;
    const Step& step;
    long length, size, first_head, num_groups, num_heads, first, last;
    float scale;
    long window, chunk_size;
    float softcap;
    const float* sinks;

    long num_queries() const { return (last - first) * num_groups; }
    long row_of(long q) const { return first + q / num_groups; }
    long head_of(long q) const { return first_head + q % num_groups; }
    // Those of the prefix, and of the sequence's rows up to the last one here.
    long num_keys() const { return length + step.rows[last - 1].number + 1; }
    // Floats from one query's scores to the next one's.
    long stride() const { return (num_keys() + KEYS - 1) / KEYS * KEYS; }

    const float* query_of(long q) const { return query + row_of(q) * query_width + head_of(q) * query_stride; }
    float* out_of(long q) const { return out + (row_of(q) * num_heads + head_of(q)) * size; }
    const weight_t* value(long key) const { return values + key * value_stride; }
    float sink_of(long q) const { return sinks ? sinks[head_of(q)] : -INFINITY; }

    const int* seen_by(long row) const { return step.seen_by(row); }
    // A row sees the keys [begin_of, end_of) of its path: those of the prefix, then its ancestors and itself.
    long end_of(long row) const { return length + step.num_seen(row); }
    long begin_of(long row) const {
        if (chunk_size > 0) return (end_of(row) - 1) / chunk_size * chunk_size;
        const long begin = window > 0 ? end_of(row) - window : 0;
        return begin < 0 ? 0 : begin;
    }
    // The first key that any of the rows sees.
    long begin_of_all() const {
        long begin = num_keys();
        for (long row = first; row < last; row++) begin = begin_of(row) < begin ? begin_of(row) : begin;
        return begin;
    }

    // The keys before it are in the order of the positions for all rows: those of the prefix, and the chain of the
    // sequence's first rows that all rows descend from.
    long end_of_shared() const {
        long end = end_of(first);
        for (long row = first; row < last; row++) {
            const int* seen = seen_by(row);
            long below = 0, above = step.num_seen(row);  // a path's rows ascend, so behind a gap none is in its place
            while (below < above) {
                const long middle = (below + above) / 2;
                if (seen[middle] == middle) below = middle + 1;
                else above = middle;
            }
            end = length + below < end ? length + below : end;
        }
        return end;
    }

    // Puts a row's scores, which are those of the keys from `from` on, in the order of its path.
    void follow_path(long row, float* scores, long from) const {
        const int* seen = seen_by(row);
        for (long n = from < length ? 0 : from - length; length + n < end_of(row); n++)
            scores[length + n - from] = scores[length + seen[n] - from];
    }
};
