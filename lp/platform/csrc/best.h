// The best tokens of rows of scores: lp/sampling/top_k.py.
#pragma once

#include <algorithm>
#include <cstdint>

// Scores of a block are compared at once; the block is searched if one of them is better than those so far.
constexpr int64_t BLOCK = 128, WIDTH = 16;
constexpr int32_t NOT_A_TOKEN = -1;
typedef float Scores __attribute__((vector_size(WIDTH * 4), aligned(4), may_alias));
typedef int32_t Flags __attribute__((vector_size(WIDTH * 4), aligned(4)));

// The `num_best` best of a row, best first; of equal ones the first in the vocabulary comes first.
class BestOfRow {
public:
    BestOfRow(int64_t num_best, int64_t* tokens, float* values) : num_best_(num_best), tokens_(tokens), values_(values) {}

    bool takes(float value) const { return found_ < num_best_ || value > values_[found_ - 1]; }

    void add(int64_t token, float value) {
        if (!takes(value)) return;
        int64_t at = found_ < num_best_ ? found_++ : found_ - 1;
        for (; at > 0 && value > values_[at - 1]; --at) {
            values_[at] = values_[at - 1];
            tokens_[at] = tokens_[at - 1];
        }
        values_[at] = value;
        tokens_[at] = token;
    }

private:
    int64_t num_best_, found_ = 0;
    int64_t* tokens_;
    float* values_;
};

// Returns whether all scores are numbers; where one is not, what is found means nothing.
inline bool find_best(const float* scores, int64_t vocab_size, BestOfRow best) {
    Flags odd{};
    int64_t token = 0;
    for (; token + BLOCK <= vocab_size; token += BLOCK) {
        const Scores* block = reinterpret_cast<const Scores*>(scores + token);
        Scores highest = block[0];
        for (int64_t at = 0; at < BLOCK / WIDTH; ++at) {
            const Scores some = block[at];
            highest = some > highest ? some : highest;
            odd |= some != some;
        }
        float most = highest[0];
        for (int64_t lane = 1; lane < WIDTH; ++lane) most = std::max(most, highest[lane]);
        if (!best.takes(most)) continue;
        for (int64_t at = token; at < token + BLOCK; ++at) best.add(at, scores[at]);
    }
    bool is_odd = false;
    for (; token < vocab_size; ++token) {
        is_odd |= scores[token] != scores[token];
        best.add(token, scores[token]);
    }
    for (int64_t lane = 0; lane < WIDTH; ++lane) is_odd |= odd[lane] != 0;
    return !is_odd;
}
