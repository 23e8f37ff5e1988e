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

// a: x, its start and width; the values and places that are written; how many numbers there are, and how many are chosen.
static void choose_largest(const long* a, long first, long last) {
    const long size = a[5], count = a[6];
    for (long row = first; row < last; row++) {
        const float* x = (const float*)a[0] + a[1] + row * a[2];
        float* values = (float*)a[3] + row * count;
        long* places = (long*)a[4] + row * count;
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

// a: x, its start, width and stride of choices; the experts, their start and width; the packed weights, what is written,
// inputs, outputs, choices of a row, and experts.
static void multiply_experts(const long* a, long first, long last, long thread, long num_threads) {
    static thread_local std::vector<long> begins, pairs;
    static thread_local std::vector<half_t> inputs;
    static thread_local std::vector<float> outputs;
    const long num_inputs = a[9], num_outputs = a[10], num_choices = a[11], num_experts = a[12];
    const half_t* x = (const half_t*)a[0] + a[1];
    float* out = (float*)a[8];
    const auto expert_of = [&](long pair) {
        return ((const long*)a[4])[pair / num_choices * a[6] + a[5] + pair % num_choices];
    };
    const auto input_of = [&](long pair) { return x + pair / num_choices * a[2] + pair % num_choices * a[3]; };

    begins.assign(num_experts + 1, 0);
    for (long pair = first * num_choices; pair < last * num_choices; pair++) begins[expert_of(pair) + 1]++;
    for (long n = 0; n < num_experts; n++) begins[n + 1] += begins[n];
    pairs.resize(begins[num_experts]);
    for (long pair = first * num_choices; pair < last * num_choices; pair++) pairs[begins[expert_of(pair)]++] = pair;
    // Now begins[n] is where the pairs of expert n end.

    Product product = {x, num_inputs, (const weight_t*)a[7], nullptr, out, num_inputs, num_outputs};
    const long weight_size = product.num_panels() * product.panel_size();
    const long begin = product.share(thread, num_threads) * PANEL;
    const long padded_end = product.share(thread + 1, num_threads) * PANEL;
    const long end = padded_end < num_outputs ? padded_end : num_outputs;
    const auto weight_of = [&](long pair) { return (const weight_t*)a[7] + expert_of(pair) * weight_size; };
    for (long at = 0; at < (long)pairs.size();) {
        const long rest = begins[expert_of(pairs[at])] - at;
        const long count = rest < PAIRS_AT_ONCE ? rest : PAIRS_AT_ONCE;
        product.weight = weight_of(pairs[at]);
        Product next = product;
        if (at + count < (long)pairs.size()) next.weight = weight_of(pairs[at + count]);
        if (count == 1) {
            product.x = input_of(pairs[at]);
            product.out = out + pairs[at] * num_outputs;
            multiply(product, next, 0, 1, thread, num_threads);
        } else {
            inputs.resize((PAIRS_AT_ONCE + ROWS_BEHIND) * num_inputs);
            outputs.resize(PAIRS_AT_ONCE * num_outputs);
            for (long n = 0; n < count; n++)
                memcpy(&inputs[n * num_inputs], input_of(pairs[at + n]), num_inputs * sizeof(half_t));
            product.x = inputs.data();
            product.out = outputs.data();
            multiply(product, next, 0, count, thread, num_threads);
            for (long n = 0; n < count; n++)
                memcpy(out + pairs[at + n] * num_outputs + begin, &outputs[n * num_outputs + begin],
                       (end - begin) * sizeof(float));
        }
        at += count;
    }
}
