// How many drafts a step takes that several sequences share: lp/scheduling/planner.py, whose comments say why.
//
// Every number is computed by the same operations in the same order as there. B sequences, D drafts that they offer
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

// odds: [D] of all drafts, those of the first sequence first, in descending order for each. sizes: [B] how many drafts each
// offers. row_s: [B] seconds of a row of each beyond the curve. curve: [D + 1] seconds of a step by the drafts it takes.
// host_s: seconds of the step without drafts beyond that. Writes how many drafts of each sequence are taken to `counts`.
inline void share_out(const double* odds, const int64_t* sizes, int64_t load, const double* row_s, const double* curve,
                      double host_s, int64_t* counts) {
    std::vector<int64_t> owners;
    for (int64_t number = 0; number < load; ++number) owners.insert(owners.end(), sizes[number], number);
    std::vector<int64_t> order(owners.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [odds](int64_t one, int64_t two) { return odds[one] > odds[two]; });
    double expected = double(load), beyond_s = host_s, best_speed = expected / (curve[0] + beyond_s);
    size_t best = 0;
    for (size_t taken = 0; taken < order.size(); ++taken) {
        expected += odds[order[taken]];
        beyond_s += row_s[owners[order[taken]]];
        const double speed = expected / (curve[taken + 1] + beyond_s);
        if (speed >= best_speed) {
            best_speed = speed;
            best = taken + 1;
        }
    }
    std::fill_n(counts, load, 0);
    for (size_t taken = 0; taken < best; ++taken) ++counts[owners[order[taken]]];
}
