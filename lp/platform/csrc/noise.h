// What the noise of a tree's rows is made of: lp/sampling/noise.py.
#pragma once

#include <cmath>
#include <cstdint>

// How a row's token is chosen: LAYOUT in lp/sampling/rows.py.
struct Choice {
    int64_t key;
    int32_t num_tokens, is_drawn;
    float temperature, top_p, min_p;
    int32_t top_k;
};

// What counters of splitmix64 (Steele, Lea and Flood, 2014) grow by.
constexpr uint64_t GOLDEN = 0x9E3779B97F4A7C15;

// The finaliser of splitmix64, of a uint64_t or of a vector of them.
template <class Words>
Words mix(Words value) {
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9;
    value = (value ^ value >> 27) * 0x94D049BB133111EB;
    return value ^ value >> 31;
}

// The standard Gumbel noise of a hash, as lp/sampling/noise.py computes it.
inline float gumbel_of(uint64_t hash) {
    return float(-std::log(-std::log((double(hash >> 12) + 0.5) * 0x1p-52)));
}

// Has the tokens of all rows drawn, by the keys of their positions. depths: of the rows; length: of the sequence whose
// last token is the root. seed: mixed.
inline void draw(const int64_t* depths, int64_t num_rows, int64_t length, uint64_t seed, Choice* choices,
                 int64_t* positions) {
    for (int64_t row = 0; row < num_rows; ++row) {
        positions[row] = length + depths[row];
        choices[row].key = int64_t(mix(seed + uint64_t(positions[row]) * GOLDEN));
        choices[row].is_drawn = 1;
    }
}
