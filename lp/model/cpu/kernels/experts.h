// Mixtures of experts: the choice of each row's experts, and products of rows with the weights of theirs.
//
// The pairs of a row and one of its experts are computed expert by expert, so that a weight is read once for all rows
// that are sent to it. Each pair's sums are those of `multiply`, in the order of the inputs, whatever other pairs there
// are.
#pragma once

#include <vector>

#include "linear.h"

#define PAIRS_AT_ONCE ROWS_AT_ONCE
#define ROWS_BEHIND 16  // that products may read behind the last one: TILE_ROWS

// a: x, its start and width; the values and places that are written; how many numbers a piece has, how many are chosen, and
// how many pieces a row has.
static void choose_largest(const long* a, long first, long last) {
    const long size = a[5], count = a[6], num_pieces = a[7];
    for (long piece = first * num_pieces; piece < last * num_pieces; piece++) {
        const float* x = (const float*)a[0] + a[1] + piece / num_pieces * a[2] + piece % num_pieces * size;
        float* values = (float*)a[3] + piece * count;
        long* places = (long*)a[4] + piece * count;
        for (long n = 0; n < count; n++) {
            long best = -1;
            for (long i = 0; i < size; i++) {
                bool is_free = best < 0 || x[i] > x[best];
                for (long taken = 0; is_free && taken < n; taken++) is_free = places[taken] != i;
                if (is_free) best = i;
            }
            places[n] = best;
            values[n] = x[best];
        }
    }
}

// The pairs of a row and one of its experts, expert by expert. a: x, its start, width and stride of choices; the experts,
// their start and width; the packed weights, biases or null, what is written, inputs, outputs, choices of a row, and
// experts.
struct Pairs {
    const long* a;
    std::vector<long> begins, pairs;

    long num_inputs() const { return a[10]; }
    long num_outputs() const { return a[11]; }
    long num_choices() const { return a[12]; }
    float* out_of(long pair) const { return (float*)a[9] + pair * num_outputs(); }
    const float* bias_of(long expert) const { return a[8] ? (const float*)a[8] + expert * num_outputs() : nullptr; }
    const half_t* input_of(long pair) const {
        return (const half_t*)a[0] + a[1] + pair / num_choices() * a[2] + pair % num_choices() * a[3];
    }
    long expert_of(long pair) const {
        return ((const long*)a[4])[pair / num_choices() * a[6] + a[5] + pair % num_choices()];
    }

    void lay(const long* arguments, long first, long last) {
        a = arguments;
        const long num_experts = a[13], begin = first * num_choices(), end = last * num_choices();
        begins.assign(num_experts + 1, 0);
        for (long pair = begin; pair < end; pair++) begins[expert_of(pair) + 1]++;
        for (long n = 0; n < num_experts; n++) begins[n + 1] += begins[n];
        pairs.resize(begins[num_experts]);
        for (long pair = begin; pair < end; pair++) pairs[begins[expert_of(pair)]++] = pair;
        // Now begins[n] is where the pairs of expert n end.
    }
};

// Has `multiply` compute the outputs [begin, end) of all pairs, some pairs of one expert at a time. multiply(expert, the
// next expert, the bias, x, count, out): count rows side by side.
template <class Multiply>
static void multiply_pairs(const long* a, long first, long last, long begin, long end, Multiply multiply) {
    static thread_local Pairs rows;
    static thread_local std::vector<half_t> inputs;
    static thread_local std::vector<float> outputs;
    rows.lay(a, first, last);
    const std::vector<long>& pairs = rows.pairs;
    const long num_inputs = rows.num_inputs(), num_outputs = rows.num_outputs();
    for (long at = 0; at < (long)pairs.size();) {
        const long expert = rows.expert_of(pairs[at]), rest = rows.begins[expert] - at;
        const long count = rest < PAIRS_AT_ONCE ? rest : PAIRS_AT_ONCE;
        const long next = at + count < (long)pairs.size() ? rows.expert_of(pairs[at + count]) : expert;
        const float* bias = rows.bias_of(expert);
        if (count == 1) {
            multiply(expert, next, bias, rows.input_of(pairs[at]), count, rows.out_of(pairs[at]));
        } else {
            inputs.resize((PAIRS_AT_ONCE + ROWS_BEHIND) * num_inputs);
            outputs.resize(PAIRS_AT_ONCE * num_outputs);
            for (long n = 0; n < count; n++)
                memcpy(&inputs[n * num_inputs], rows.input_of(pairs[at + n]), num_inputs * sizeof(half_t));
            multiply(expert, next, bias, inputs.data(), count, outputs.data());
            for (long n = 0; n < count; n++)
                memcpy(rows.out_of(pairs[at + n]) + begin, &outputs[n * num_outputs + begin],
                       (end - begin) * sizeof(float));
        }
        at += count;
    }
}

// a: see Pairs.
static void multiply_experts(const long* a, long first, long last, long thread, long num_threads) {
    const long num_inputs = a[10], num_outputs = a[11];
    const weight_t* weights = (const weight_t*)a[7];
    const Product any = {nullptr, num_inputs, weights, nullptr, nullptr, num_inputs, num_outputs};
    const long weight_size = any.num_panels() * any.panel_size();
    const long begin = any.share(thread, num_threads) * PANEL, padded = any.share(thread + 1, num_threads) * PANEL;
    multiply_pairs(a, first, last, begin, padded < num_outputs ? padded : num_outputs,
                   [&](long expert, long next, const float* bias, const half_t* x, long count, float* out) {
                       Product product = any, after = any;
                       product.x = x, product.bias = bias, product.out = out;
                       product.weight = weights + expert * weight_size;
                       after.weight = weights + next * weight_size;
                       multiply(product, after, 0, count, thread, num_threads);
                   });
}
