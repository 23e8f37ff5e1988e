// Sums and gathers over the ranks that share a model, in the middle of a step.
//
// Ranks of one host do so in memory that they share: each writes its part to a slot of its own, says so, and reads the
// parts of the others once they have said so. There are two slots for each rank, for odd and even rounds, so a rank may
// be one round ahead. Where there is no such memory, a function of Python's talks to the others.
#pragma once

#include <omp.h>
#include <sched.h>
#include <string.h>

#include <atomic>

enum CollectiveKind { REDUCE, GATHER };

// The ranks, as Python describes them. slots: null without shared memory. round: of the last exchange. spins: how often
// a rank looks for the others before it lends its core to somebody else. look: called now and then by a rank that waits;
// not 0 if that is in vain. call: does the collective of an instruction in Python; not 0 if it fails. failed: whether
// the step has to end. num_collectives, bytes_sent, seconds: what was done since Python has set them to 0.
struct Group {
    long rank, num_ranks;
    char* slots;
    long slot_bytes;
    char* rounds;
    long stride, round, spins;
    long (*look)(long place, double waited);
    long (*call)(long instruction, long first, long num_rows);
    long failed, num_collectives, bytes_sent;
    double seconds;

    float* slot(long place, long number) const { return (float*)(slots + (2 * place + number % 2) * slot_bytes); }
    std::atomic<long>& said(long place) const { return *(std::atomic<long>*)(rounds + place * stride); }
};

static const double LOOK_S = 0.02;

// Says that this rank's part of a round is there, and waits for those of all others.
static void exchange(Group& group) {
    const long round = ++group.round;
    group.said(group.rank).store(round, std::memory_order_release);
    for (long place = 0; place < group.num_ranks; place++) {
        double begin = 0.0, next_look = LOOK_S;
        for (long spins = 0; group.said(place).load(std::memory_order_acquire) < round; spins++) {
            if (spins < group.spins) {
#if defined(__x86_64__)
                __builtin_ia32_pause();
#endif
                continue;
            }
            sched_yield();
            if (spins % 64) continue;
            if (begin == 0.0) begin = omp_get_wtime();
            const double waited = omp_get_wtime() - begin;
            if (waited < next_look) continue;
            next_look = waited + LOOK_S;
            if (group.look(place, waited)) {
                group.failed = 1;
                return;
            }
        }
    }
}

// The sum over the ranks, in their order, of `size` numbers.
static void add_parts(const Group& group, float* __restrict__ out, long begin, long end) {
    const float* __restrict__ first = group.slot(0, group.round);
    const float* __restrict__ second = group.slot(1, group.round);
    for (long i = begin; i < end; i++) out[i] = first[i] + second[i];
    for (long place = 2; place < group.num_ranks; place++) {
        const float* __restrict__ part = group.slot(place, group.round);
        for (long i = begin; i < end; i++) out[i] += part[i];
    }
}

// a: the address of x, and of the outcome, the outcome's width, and the size of x on each rank. meet: waits for the other
// threads.
template <class Meet>
static void collect(Group& group, long kind, long instruction, const long* a, long first, long num_rows, long thread,
                    long num_threads, const Meet& meet) {
    const double begun = thread == 0 ? omp_get_wtime() : 0.0;
    const long width = a[2], *sizes = a + 3, own = sizes[group.rank];
    const float* x = (const float*)a[0] + first * own;
    float* out = (float*)a[1] + first * width;
    if (!group.slots) {
        if (thread == 0) group.failed = group.call(instruction, first, num_rows);
        meet();
    } else {
        long largest = 0;
        for (long place = 0; place < group.num_ranks; place++) largest = sizes[place] > largest ? sizes[place] : largest;
        const long rows_of_slot = group.slot_bytes / (long)sizeof(float) / largest;
        for (long row = 0; row < num_rows && !group.failed; row += rows_of_slot) {
            const long rows = num_rows - row < rows_of_slot ? num_rows - row : rows_of_slot, numbers = rows * own;
            const long begin = numbers * thread / num_threads, end = numbers * (thread + 1) / num_threads;
            memcpy(group.slot(group.rank, group.round + 1) + begin, x + row * own + begin, (end - begin) * sizeof(float));
            meet();
            if (thread == 0) exchange(group);
            meet();
            if (group.failed) break;
            if (kind == REDUCE) {
                add_parts(group, out + row * width, begin, end);
            } else {
                for (long place = 0, at = 0; place < group.num_ranks; at += sizes[place++]) {
                    const long size = sizes[place], left = size * thread / num_threads;
                    const long bytes = (size * (thread + 1) / num_threads - left) * sizeof(float);
                    const float* part = group.slot(place, group.round);
                    for (long r = 0; r < rows; r++)
                        memcpy(out + (row + r) * width + at + left, part + r * size + left, bytes);
                }
            }
        }
    }
    if (thread == 0) {
        group.num_collectives++;
        group.bytes_sent += num_rows * own * (long)sizeof(float);
        group.seconds += omp_get_wtime() - begun;
    }
}
