// Runs a program's stages on several threads, which meet between two stages.
//
// times: null, or room for the time at which the first thread begins each instruction, and that of the end.
#pragma once

#include "attention.h"
#include "collective.h"
#include "experts.h"
#include "meeting.h"
#include "recurrent.h"

enum Kind {
    FUNCTION, PRODUCT, ATTENTION, COLLECTIVE, EXPERTS, TOP_K, QUANTIZED, QUANTIZED_EXPERTS, CONVOLUTION, RECURRENCE, SCAN
};

// One entry of a program. number: of the function, the kind of attention or collective, or the format of quantised
// weights. is_last: only the rows whose logits are asked for are needed. meets: the threads meet before it. first: where
// its arguments begin.
struct Instruction {
    long kind, number, is_last, meets, first;
};

typedef void (*Function)(const Step&, const long* arguments, long first, long last);
typedef void (*Attention)(const Step&, const long* arguments, long first, float* room, long room_size, long thread,
                          long num_threads, Meeting& meeting);
typedef void (*QuantizedProduct)(const long* arguments, long first, long last, long thread, long num_threads);
typedef void (*ScreenedProduct)(const long* arguments, long first, long last, long thread, long num_threads, float* limits,
                                long stride, void (*meet)(void*), void* meeting);

// Products with quantised weights of one format, and those of experts; if codes are split, those of screened.h as well.
struct QuantizedKernels {
    QuantizedProduct multiply, multiply_experts;
    ScreenedProduct multiply_screened;
};

// What instructions name by a number: functions of stages, and kernels by the sizes of heads and formats of weights.
struct Kernels {
    const Function* functions;
    const Attention* attentions;
    const QuantizedKernels* quantized;
};

static Product product_of(const Instruction& one, const long* arguments) {
    const long* a = arguments + one.first;
    return {(const half_t*)a[0] + a[1], a[2], (const weight_t*)a[3], (const float*)a[4], (float*)a[5], a[6], a[7]};
}

// The product that comes after instruction `number`; that instruction itself if there is none.
static const Instruction& next_product(const Instruction* program, long num_instructions, long number) {
    for (long n = number + 1; n < num_instructions; n++)
        if (program[n].kind == PRODUCT) return program[n];
    return program[number];
}

static void run_program(const Step& step, const Kernels& kernels, const Instruction* program, long num_instructions,
                        const long* arguments, Group* group, float* room, long room_size, long most_threads,
                        double* times) {
    Meeting meeting;
#pragma omp parallel num_threads(most_threads)
    {
        const long num_threads = omp_get_num_threads();
#pragma omp single
        meeting.expect(num_threads);
        const long thread = omp_get_thread_num();
        const FlushSmall flush_small;
        open_matrix_unit();
        for (long n = 0; n < num_instructions; n++) {
            const Instruction& one = program[n];
            const long* a = arguments + one.first;
            const long first = one.is_last ? step.num_rows - step.num_answered : 0, count = step.num_rows - first;
            if (one.meets && num_threads > 1) meeting.wait();
            if (times && thread == 0) times[n] = omp_get_wtime();
            if (count == 0) continue;
            if (one.kind == FUNCTION)
                kernels.functions[one.number](step, a, first + count * thread / num_threads,
                                      first + count * (thread + 1) / num_threads);
            else if (one.kind == PRODUCT)
                multiply(product_of(one, arguments), product_of(next_product(program, num_instructions, n), arguments),
                         first, step.num_rows, thread, num_threads);
            else if (one.kind == ATTENTION)
                kernels.attentions[one.number](step, a, first, room, room_size, thread, num_threads, meeting);
            else if (one.kind == QUANTIZED && a[9] && step.only_best && count <= MOST_SCREENED_ROWS)
                kernels.quantized[one.number].multiply_screened(
                    a, first, step.num_rows, thread, num_threads, room, room_size,
                    [](void* meeting) { ((Meeting*)meeting)->wait(); }, &meeting);
            else if (one.kind == QUANTIZED)
                kernels.quantized[one.number].multiply(a, first, step.num_rows, thread, num_threads);
            else if (one.kind == QUANTIZED_EXPERTS)
                kernels.quantized[one.number].multiply_experts(a, first, step.num_rows, thread, num_threads);
            else if (one.kind == EXPERTS)
                multiply_experts(a, first, step.num_rows, thread, num_threads);
            else if (one.kind == CONVOLUTION)
                convolve(step, a, thread, num_threads);
            else if (one.kind == RECURRENCE)
                recur<false>(step, a, room + thread * room_size, thread, num_threads);
            else if (one.kind == SCAN)
                recur<true>(step, a, room + thread * room_size, thread, num_threads);
            else if (one.kind == TOP_K)
                choose_largest(a, first + count * thread / num_threads, first + count * (thread + 1) / num_threads);
            else
                collect(*group, one.number, n, a, first, count, thread, num_threads, [&] {
                    if (num_threads > 1) meeting.wait();
                });
            if (group && group->failed) break;
        }
        if (times && num_threads > 1) meeting.wait();
        if (times && thread == 0) times[num_instructions] = omp_get_wtime();
        close_matrix_unit();
    }
}

extern "C" {
// rates: of a scan; else null.
void replay_rows(const float* before, float* after, const float* left, const long* rows, const float* rates, long num_rows,
                 long num_heads, long num_key_heads, long key_size, long size, long num_threads) {
    const Sizes sizes{num_heads, num_key_heads, key_size, size};
    if (rates) replay<true>(before, after, left, rows, rates, num_rows, sizes, num_threads);
    else replay<false>(before, after, left, rows, rates, num_rows, sizes, num_threads);
}
}
