// Attention of the rows of trees over KV caches: each row sees its sequence's prefix, its ancestors and itself.
//
// For every row and head all sums are made in an order by the positions of the keys, whether they lie in the prefix or in
// the tree. So a row's result is the same to the last bit wherever the prefix ends and whatever other rows there are.
#pragma once

#include "matrix_attention.h"
#include "meeting.h"
#include "vector_attention.h"

#define ENOUGH_ROWS 2  // for a task of the matrix unit, if there are too few for all threads
#define TURNING 16     // queries that cost as much as turning the keys for them

// A run's rows from `first` on in chunks of about the same size, and the query heads of a key/value head in parts: tasks.
struct Tasks {
    long begin, count, num_groups, num_chunks, num_parts;

    Tasks(const Run& run, long first, long num_groups)
        : begin(run.first < first ? first : run.first), count(run.last < begin ? 0 : run.last - begin),
          num_groups(num_groups), num_parts((num_groups + MOST_QUERIES - 1) / MOST_QUERIES) {
        const long most = MOST_QUERIES / ((num_groups + num_parts - 1) / num_parts);
        num_chunks = (count + most - 1) / most;
    }

    // Makes more of them, if the threads cannot share the blocks of one. A task turns all keys, so no more than needed.
    void divide(long num_heads, long num_threads) {
        while (num_chunks * num_heads * num_parts % num_threads && num_chunks * ENOUGH_ROWS <= count) num_chunks++;
        while (num_chunks * num_heads * (num_parts + 1) <= num_threads && num_parts < num_groups && count) num_parts++;
    }

    long first_row(long chunk) const { return begin + count * chunk / num_chunks; }
    long first_group(long part) const { return num_groups * part / num_parts; }
};

// What a task consists of: the blocks that all its rows see alike, and all that follows them as one piece more. Costs are
// rough. begin: the cost of all tasks before it.
struct Pieces {
    long first_block = 0, num_blocks = 0, cost_of_block = 0, cost_of_rest = 0, begin = 0;

    long count() const { return num_blocks + 1; }
    long cost() const { return num_blocks * cost_of_block + cost_of_rest; }
    // The key from which on the rest is.
    long from() const { return (first_block + num_blocks) * KEYS_OF_BLOCK; }

    // The first piece whose middle lies behind a place among the costs of all tasks.
    long behind(double place) const {
        place -= begin;
        if (place <= 0) return 0;
        const long piece = cost_of_block ? (long)std::ceil(place / cost_of_block - 0.5) : 0;
        if (piece < num_blocks) return piece;
        return num_blocks + (num_blocks * cost_of_block + 0.5 * cost_of_rest < place);
    }
};

// A layer's attention for all rows from `first` on, and what each thread does of it. a: the queries, where they begin in a
// row, the numbers of a row, the output, the layer, the sinks of all query heads or null, the numbers from one query head
// to the next, key/value heads, query heads of each, scale, window, chunk size, softcap. IN_KEYS: whether values are the
// first numbers of keys. room: of `room_size` floats for each thread.
template <int KEY_SIZE, int VALUE_SIZE, bool IN_KEYS>
class LayerAttention {
   public:
    typedef VectorAttention<KEY_SIZE, VALUE_SIZE> ByVectors;
    typedef typename ByVectors::Sum Sum;

    LayerAttention(const Step& step, const long* a, long first, float* room, long room_size, long num_threads)
        : step_(step), a_(a), first_(first), room_(room), room_size_(room_size), num_threads_(num_threads) {
        each_task([&](const Task&, const Pieces& pieces) { whole_ += pieces.cost(); });
    }

    // A thread's share: some of the tasks, and of the blocks of the first and the last of them. Threads that share a task
    // meet, and then put together what they have found.
    void run(long thread, Meeting& meeting) const {
        bool is_shared = false;
        each_task([&](const Task& task, const Pieces& pieces) {
            const long begin = first_piece(pieces, thread), end = first_piece(pieces, thread + 1);
            is_shared |= is_shared_out(pieces);
            if (begin < end) compute(task, pieces, begin, end, thread);
        });
        if (!is_shared) return;
        meeting.wait();
        each_task([&](const Task& task, const Pieces& pieces) {
            if (is_shared_out(pieces)) put_together(task, pieces, thread);
        });
    }

    // Floats of room that a thread needs if the longest sequence has so many tokens: sums of a task that others go on with,
    // of each block of one that others began, and scores.
    static long room_for(long longest) {
        return (2 + (longest + KEYS_OF_BLOCK - 1) / KEYS_OF_BLOCK) * FLOATS_OF_SUMS + ByVectors::room_for(longest);
    }

   private:
    static constexpr long FLOATS_OF_SUMS = sizeof(Sum) / sizeof(float);

    // Whether a task is for the matrix unit, which computes it as a whole.
    static bool is_whole() {
#if HAS_MATRIX_UNIT
        return uses_matrix_unit && KEY_SIZE % TILE_INPUTS == 0 && VALUE_SIZE % TILE_INPUTS == 0;
#else
        return false;
#endif
    }

    // Calls visit(task, pieces) for all tasks, in the same order on each thread.
    template <class Visit>
    void each_task(Visit visit) const {
        const long num_heads = a_[7], num_groups = a_[8];
        const long threads_of_run = (num_threads_ + step_.num_runs - 1) / step_.num_runs;
        constexpr long VALUE_STRIDE = IN_KEYS ? KEY_SIZE : VALUE_SIZE;
        long begin = 0;
        for (long n = 0; n < step_.num_runs; n++) {
            Tasks tasks(step_.runs[n], first_, num_groups);
            if (is_whole()) tasks.divide(num_heads, threads_of_run);
            const long number = step_.runs[n].sequence, capacity = step_.sequences[number].capacity;
            const weight_t *keys = step_.keys(number, a_[4]), *values = IN_KEYS ? keys : step_.values(number, a_[4]);
            for (long chunk = 0; chunk < tasks.num_chunks; chunk++) {
                Task task{(const float*)a_[0] + a_[1],
                          a_[2],
                          a_[6],
                          (float*)a_[3],
                          keys,
                          values,
                          VALUE_STRIDE,
                          step_,
                          step_.sequences[number].length,
                          VALUE_SIZE,
                          0,
                          num_groups,
                          num_heads * num_groups,
                          tasks.first_row(chunk),
                          tasks.first_row(chunk + 1),
                          float_of(a_[9]),
                          a_[10],
                          a_[11],
                          float_of(a_[12]),
                          (const float*)a_[5]};
                Pieces pieces;
                if (!is_whole()) {
                    pieces.first_block = task.begin_of_all() / KEYS_OF_BLOCK;
                    const long num_blocks = task.end_of_shared() / KEYS_OF_BLOCK - pieces.first_block;
                    pieces.num_blocks = num_blocks > 0 ? num_blocks : 0;
                }
                for (long head = 0; head < num_heads; head++)
                    for (long part = 0; part < tasks.num_parts; part++) {
                        task.keys = keys + head * capacity * KEY_SIZE;
                        task.values = values + head * capacity * VALUE_STRIDE;
                        task.first_head = head * num_groups + tasks.first_group(part);
                        task.num_groups = tasks.first_group(part + 1) - tasks.first_group(part);
                        const long cost_of_key = TURNING + task.num_queries();
                        pieces.cost_of_block = KEYS_OF_BLOCK * cost_of_key;
                        pieces.cost_of_rest = (task.num_keys() - pieces.from()) * cost_of_key;
                        pieces.begin = begin;
                        begin += pieces.cost();
                        visit(task, pieces);
                    }
            }
        }
    }

    // The first piece of a task that is not for the threads before this one.
    long first_piece(const Pieces& pieces, long thread) const {
        return thread < num_threads_ ? pieces.behind((double)whole_ * thread / num_threads_) : pieces.count();
    }

    // Calls visit(thread, first piece, last piece) for the threads that compute a task.
    template <class Visit>
    void each_share(const Pieces& pieces, Visit visit) const {
        long thread = whole_ ? pieces.begin * num_threads_ / whole_ : 0;
        for (long begin = 0, end; begin < pieces.count(); begin = end, thread++) {
            end = first_piece(pieces, thread + 1);
            if (begin < end) visit(thread, begin, end);
        }
    }

    bool is_shared_out(const Pieces& pieces) const {
        long num_threads = 0;
        each_share(pieces, [&](long, long, long) { num_threads++; });
        return num_threads > 1;
    }

    // A thread's sums of a task that it began, and behind them those of each block of one that others began.
    Sum* sums_of(long thread) const { return (Sum*)(room_ + thread * room_size_); }

    void compute(const Task& task, const Pieces& pieces, long begin, long end, long thread) const {
        float* room = room_ + thread * room_size_;
#if HAS_MATRIX_UNIT
        if constexpr (KEY_SIZE % TILE_INPUTS == 0 && VALUE_SIZE % TILE_INPUTS == 0)
            if (is_whole()) return attend_by_matrix_unit<KEY_SIZE, VALUE_SIZE>(task, room);
#endif
        float* scores = room + room_size_ - ByVectors::room_for(task.num_keys());
        ByVectors kernel(task, pieces.first_block, pieces.num_blocks, scores);
        Sum* sums = sums_of(thread);
        if (begin > 0) return kernel.add(begin, end, sums + 1, true);
        kernel.add(begin, end, sums, false);
        if (end == pieces.count()) ByVectors::finish(task, *sums, 0, task.num_queries());
    }

    // Adds what the threads have found of a task, for some of its queries.
    void put_together(const Task& task, const Pieces& pieces, long thread) const {
        const long num_queries = task.num_queries(), first = num_queries * thread / num_threads_;
        const long last = num_queries * (thread + 1) / num_threads_;
        if (first == last) return;
        Sum sums;
        each_share(pieces, [&](long other, long begin, long end) {
            const Sum* found = sums_of(other);
            if (begin == 0) return ByVectors::copy(*found, sums, first, last);
            const long num_blocks = pieces.num_blocks + ByVectors::num_blocks_of_rest(task, pieces.from());
            const long last_block = end < pieces.count() ? end : num_blocks;
            for (long block = begin; block < last_block; block++)
                ByVectors::merge(sums, found[1 + block - begin], num_queries, first, last);
        });
        ByVectors::finish(task, sums, first, last);
    }

    const Step& step_;
    const long* const a_;
    const long first_;
    float* const room_;
    const long room_size_, num_threads_;
    long whole_ = 0;
};

// See LayerAttention.
template <int KEY_SIZE, int VALUE_SIZE, bool IN_KEYS>
static void attend(const Step& step, const long* a, long first, float* room, long room_size, long thread, long num_threads,
                   Meeting& meeting) {
    LayerAttention<KEY_SIZE, VALUE_SIZE, IN_KEYS>(step, a, first, room, room_size, num_threads).run(thread, meeting);
}
