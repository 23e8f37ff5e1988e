// Tokens of rows after top-k, top-p and min-p, where a row's best tokens suffice to say which they are:
// lp/sampling/choosers.py (Shortlist).
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <vector>

#include "best.h"
#include "noise.h"

// By how much sums of shares, a share of min-p, and two sums of score and noise must differ for the order to be sure.
// Shares are of scores over the temperature, which others round: the higher they are, the more shares may be off.
constexpr double UNSURE_SHARE = 2e-5, UNSURE_RATIO = 1e-5, UNSURE_BY_SCORE = 2.5e-7;
constexpr float UNSURE_SUM = 1e-5f;
// Subtracted from the scores of dropped tokens, which come behind all others.
constexpr float FAR = 1e4f;

// Exponentials of numbers that are not positive, off by at most 1e-6 of each.
inline Scores nearly_exp(Scores values) {
    const Scores least = Scores{} - 87.0f;
    values = values > least ? values : least;
    const Scores scaled = values * 1.44269504f;
    const Flags whole = __builtin_convertvector(scaled - 0.5f, Flags);  // rounds towards zero, and none is positive
    const Scores times = __builtin_convertvector(whole, Scores);
    const Scores part = (values - times * 0.693359375f) + times * 2.12194440e-4f;  // their difference is log(2)
    const Scores curve =
        ((((1.9892991e-4f * part + 1.3935452e-3f) * part + 8.3333096e-3f) * part + 4.1666448e-2f) * part +
         1.6666667e-1f) * part + 0.5f;  // (exp(part) - 1 - part) / part^2
    const Scores power = (Scores)((whole + 127) << 23);
    return (curve * part * part + part + 1.0f) * power;
}

// The sum of exp((score - highest) * share) over a row.
inline double sum_of_exp(const float* scores, int64_t vocab_size, float highest, float share) {
    double total = 0;
    int64_t token = 0;
    while (token + WIDTH <= vocab_size) {
        Scores sum{};
        for (const int64_t end = std::min(token + 64 * WIDTH, vocab_size / WIDTH * WIDTH); token < end; token += WIDTH)
            sum += nearly_exp((*reinterpret_cast<const Scores*>(scores + token) - highest) * share);
        for (int64_t lane = 0; lane < WIDTH; ++lane) total += sum[lane];
    }
    for (; token < vocab_size; ++token) total += std::exp(double(scores[token] - highest) * share);
    return total;
}

inline float noise_of(int64_t key, int64_t token) {
    return gumbel_of(mix(uint64_t(key) + uint64_t(token + 1) * GOLDEN));
}

// Writes the `num_tokens` best tokens of a row after its warpers and with its noise, best first. Returns whether the
// first of them is certainly that of the whole vocabulary. num_best: tokens that are looked at.
inline bool find_truncated(const float* scores, int64_t vocab_size, const Choice& how, int64_t num_best,
                           int64_t num_tokens, int32_t* tokens) {
    if (num_best >= vocab_size || num_best < std::max<int64_t>(num_tokens, 2)) return false;
    std::vector<int64_t> found(num_best);
    std::vector<float> values(num_best), sums(num_best);
    if (!find_best(scores, vocab_size, {num_best, found.data(), values.data()})) return false;
    const float highest = values[0], lowest = values.back() / how.temperature;
    if (!std::isfinite(highest)) return false;
    for (int64_t at = 0; at < num_best; ++at) sums[at] = values[at] / how.temperature;
    // Tokens better than all that are not looked at.
    const auto end = std::find_if(sums.begin(), sums.end(), [&](float sum) { return !(sum > lowest); });
    const int64_t num_known = end - sums.begin();
    const auto share_of = [&](int64_t at) { return std::exp(double(values[at] - highest) / how.temperature); };
    const double unsure = UNSURE_BY_SCORE * std::abs(sums[0]);
    int64_t num_kept = num_known;
    if (how.top_k > 0) {
        if (how.top_k >= num_known) return false;
        for (num_kept = how.top_k; num_kept < num_known && sums[num_kept] == sums[how.top_k - 1];) ++num_kept;
        if (num_kept == num_known) return false;
    }
    int64_t num_sure = num_kept;  // the others may be dropped
    if (how.top_p < 1) {
        double total = 0, better = 0;
        if (how.top_k > 0)
            for (int64_t at = 0; at < num_kept; ++at) total += share_of(at);
        else
            total = sum_of_exp(scores, vocab_size, highest, 1 / how.temperature);
        int64_t sure = 0, possible = 0;
        for (const double off = UNSURE_SHARE + unsure; possible < num_kept; better += share_of(possible++)) {
            if (better / total >= how.top_p + off) break;
            if (better / total < how.top_p - off) sure = possible + 1;
        }
        while (sure > 0 && sure < num_kept && sums[sure] == sums[sure - 1]) --sure;
        while (possible > 0 && possible < num_kept && sums[possible] == sums[possible - 1]) ++possible;
        num_sure = sure, num_kept = possible;
    }
    if (how.min_p > 0) {
        while (num_kept > 0 && share_of(num_kept - 1) < how.min_p * (1 - UNSURE_RATIO - unsure)) --num_kept;
        while (num_sure > 0 && share_of(num_sure - 1) < how.min_p * (1 + UNSURE_RATIO + unsure)) --num_sure;
    }
    if (num_kept >= num_known) return false;
    for (int64_t at = 0; at < num_best; ++at)
        sums[at] = at >= num_kept ? sums[at] - FAR : how.is_drawn ? sums[at] + noise_of(how.key, found[at]) : sums[at];
    std::vector<int64_t> order(num_best);
    std::iota(order.begin(), order.end(), 0);
    std::partial_sort(order.begin(), order.begin() + std::max<int64_t>(num_tokens, 2), order.end(),
                      [&](int64_t one, int64_t other) {
                          return sums[one] != sums[other] ? sums[one] > sums[other] : found[one] < found[other];
                      });
    for (int64_t place = 0; place < num_tokens; ++place) tokens[place] = int32_t(found[order[place]]);
    const float best = sums[order[0]], next = sums[order[1]];
    return order[0] < num_sure && best - next > UNSURE_SUM * std::max(1.0f, std::abs(best));
}
