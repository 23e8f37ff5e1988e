// The best tokens of rows of scores with noise, where noise in float32 is enough to say which they are:
// lp/sampling/drawn.py.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "best.h"
#include "noise.h"

typedef uint64_t Hashes __attribute__((vector_size(WIDTH * 8), aligned(8), may_alias));
typedef uint32_t Bits __attribute__((vector_size(WIDTH * 4), aligned(4), may_alias));

// Of a hash as 32 bits, and its complement: below this, they say too little of the noise.
constexpr uint32_t LEAST_BITS = 4096;
// By how much a sum of score and noise may be off, and for each unit of it: bounds, above what is possible.
constexpr float OFF = 2e-4f, OFF_SHARE = 1e-6f;

// The natural logarithms of positive numbers, off by at most 1e-5.
inline Scores nearly_log(Scores values) {
    constexpr int32_t ROOT_OF_HALF = 0x3f3504f3;
    const Flags above = (Flags)values - ROOT_OF_HALF;
    const Scores part = (Scores)((above & 0x7fffff) + ROOT_OF_HALF) - 1.0f;
    const Scores curve =
        ((((-0.14338313f * part + 0.220703f) * part - 0.25397832f) * part + 0.33256778f) * part - 0.49990362f) * part;
    return __builtin_convertvector(above >> 23, Scores) * 0.69314718f + part * (curve + 1.0000047f);
}

// -log(1 - part) of parts up to a half, off by at most 1e-5 of it.
inline Scores nearly_minus_log_of_rest(Scores part) {
    const Scores curve =
        ((((0.84794486f * part - 0.31305033f) * part + 0.40421879f) * part + 0.31351826f) * part + 0.500905f) * part;
    return part * (curve + 0.99999341f);
}

// The noise of all tokens at one position, nearly.
class NearlyNoise {
public:
    // vocab_size: a multiple of WIDTH.
    explicit NearlyNoise(int64_t vocab_size) : noise_(vocab_size) {}

    const float* values() const { return noise_.data(); }

    // key: see Choice.
    void make(uint64_t key) {
        Hashes counters;
        for (int64_t lane = 0; lane < WIDTH; ++lane) counters[lane] = key + uint64_t(lane + 1) * GOLDEN;
        for (size_t token = 0; token < noise_.size(); token += WIDTH, counters += WIDTH * GOLDEN) {
            const Hashes hashes = mix(counters);
            const Bits bits = __builtin_convertvector(hashes >> 32, Bits);
            const Flags is_upper = (Flags)bits >> 31;
            const Flags rest = (Flags)bits ^ is_upper;
            const Scores part = (__builtin_convertvector(rest, Scores) + 0.5f) * 0x1p-32f;
            const Scores minus_log = is_upper ? nearly_minus_log_of_rest(part) : -nearly_log(part);
            *reinterpret_cast<Scores*>(noise_.data() + token) = -nearly_log(minus_log);
            const Flags is_unsure = rest < LEAST_BITS;
            int32_t any = 0;
            for (int64_t lane = 0; lane < WIDTH; ++lane) any |= is_unsure[lane];
            if (!any) continue;
            for (int64_t lane = 0; lane < WIDTH; ++lane)
                if (is_unsure[lane]) noise_[token + lane] = gumbel_of(hashes[lane]);
        }
    }

private:
    std::vector<float> noise_;
};

// Finds the best tokens of rows, and keeps the noise of the last positions, as steps in a row draw from the same ones.
class DrawnFinder {
public:
    explicit DrawnFinder(int64_t vocab_size) : vocab_size_(vocab_size), sums_(vocab_size) {}

    // Writes the `num_best` best tokens, best first. Returns whether they are sure: none of them, nor the next one, is about as good as
    // another, and all scores are finite.
    bool find(const float* scores, const Choice& how, int64_t num_best, int64_t* tokens) {
        if (num_best >= vocab_size_) return false;
        const float share = 1.0f / how.temperature;
        if (how.is_drawn) {
            const float* noise = noise_of(uint64_t(how.key));
            for (int64_t token = 0; token < vocab_size_; ++token) sums_[token] = scores[token] * share + noise[token];
        } else {
            for (int64_t token = 0; token < vocab_size_; ++token) sums_[token] = scores[token] * share;
        }
        tokens_.resize(num_best + 1);
        values_.resize(num_best + 1);
        if (!find_best(sums_.data(), vocab_size_, {num_best + 1, tokens_.data(), values_.data()})) return false;
        std::copy(tokens_.begin(), tokens_.end() - 1, tokens);
        for (int64_t at = 0; at < num_best; ++at) {
            const float off = OFF + OFF_SHARE * std::max(std::abs(values_[at]), std::abs(values_[at + 1]));
            if (!(values_[at] - values_[at + 1] > 2 * off)) return false;
        }
        return values_[0] < std::numeric_limits<float>::infinity();
    }

private:
    static constexpr size_t MOST_KEPT = 16;

    const float* noise_of(uint64_t key) {
        const auto known = std::find(keys_.begin(), keys_.end(), key);
        if (known != keys_.end()) return kept_[known - keys_.begin()].values();
        if (kept_.size() < MOST_KEPT) {
            kept_.emplace_back((vocab_size_ + WIDTH - 1) / WIDTH * WIDTH);
            keys_.emplace_back();
        }
        const size_t at = next_++ % MOST_KEPT;
        keys_[at] = key;
        kept_[at].make(key);
        return kept_[at].values();
    }

    int64_t vocab_size_;
    std::vector<NearlyNoise> kept_;  // the oldest one is at next_, once all are there
    std::vector<uint64_t> keys_;
    size_t next_ = 0;
    std::vector<float> sums_;
    std::vector<int64_t> tokens_;
    std::vector<float> values_;
};
