// The model's answers by what they followed: lp/drafting/answer_index.py and tests/lp/drafting/reference/sources.py.
//
// An answer is its candidates, best first. R rows of a tree, K candidates of each row
#pragma once

#include <cstdint>
#include <vector>

#include "ordered_table.h"
#include "proposals.h"

// Answers by a key, and how those of a step's rows are put there.
class AnswerTable {
public:
    AnswerTable() : table_(0) {}

    uint64_t size() const { return table_.size(); }
    int width() const { return table_.width(); }

    const int32_t* find(uint64_t key) const { return table_.find(key, hash_of(key)); }

    // Keeps the answers [R, K] of rows with the keys [R]. Of several rows with the same key, the last of `right_rows`
    // among them is kept, or else the first row.
    void put(const uint64_t* keys, const int32_t* answers, int64_t num_rows, int num_candidates,
             const int64_t* right_rows, int64_t num_right) {
        if (num_candidates > table_.width()) table_.widen(num_candidates);
        for (int64_t row = 0; row < num_rows; ++row) table_.prefetch(hash_of(keys[row]));
        for (int64_t row = num_rows - 1; row >= 0; --row) write(keys[row], answers + row * num_candidates, num_candidates);
        for (int64_t at = 0; at < num_right; ++at)
            write(keys[right_rows[at]], answers + right_rows[at] * num_candidates, num_candidates);
    }

    void copy(uint64_t* keys, int32_t* answers) const { table_.copy(keys, answers); }

    void trim(uint64_t capacity) {
        while (table_.size() > capacity) table_.drop_oldest();
    }

    // Drops the answers whose keys are below `least`.
    void forget(uint64_t least) {
        table_.filter([least](uint64_t key) { return key >= least; });
    }

private:
    OrderedTable<uint64_t> table_;

    void write(uint64_t key, const int32_t* answer, int num_candidates) {
        int32_t* kept = table_.put(key, hash_of(key));
        std::memcpy(kept, answer, sizeof(int32_t) * num_candidates);
        for (int rank = num_candidates; rank < table_.width(); ++rank) kept[rank] = NONE;
    }
};

// What a step's rows have answered.
struct StepAnswers {
    std::vector<uint64_t> pairs;  // [R] the context of two tokens in which each row's path ends
    std::vector<uint64_t> tokens;  // [R] that of one token
    const int32_t* answers;        // [R, K]
    int num_candidates;
    const int64_t* right_rows;
    int64_t num_right;

    int64_t num_rows() const { return int64_t(pairs.size()); }
    void put(AnswerTable& table, const std::vector<uint64_t>& keys) const {
        table.put(keys.data(), answers, num_rows(), num_candidates, right_rows, num_right);
    }
};

// The newest answers after two tokens and after one: NewestAnswers.
struct NewestAnswers {
    AnswerTable pairs, tokens;
    uint64_t capacity;

    explicit NewestAnswers(uint64_t most) : capacity(most) {}

    void add(const StepAnswers& step) {
        step.put(pairs, step.pairs);
        step.put(tokens, step.tokens);
        pairs.trim(capacity);
        tokens.trim(capacity);
    }
};

// Answers that do not change: AnswerIndex.
struct FixedAnswers {
    AnswerTable pairs, tokens;
};

// Recycled answers: RecycledAnswers, whose matches these are.
enum Match { PAIR_AND_PLACE, TOKEN_AND_PLACE, PAIR, TOKEN, PLACE };

class Recycled {
public:
    Recycled(int num_candidates, bool by_place, uint64_t capacity, uint64_t most_places)
        : num_candidates_(num_candidates), by_place_(by_place), most_places_(most_places), newest_(capacity) {}

    // positions: [R] of the rows in the sequence; the first is the root's.
    void learn(const StepAnswers& step, const int64_t* positions) {
        newest_.add(step);
        keys_.resize(step.num_rows());
        for (int64_t row = 0; row < step.num_rows(); ++row) keys_[row] = place(positions[row]);
        step.put(places_, keys_);
        if (by_place_) {
            for (int64_t row = 0; row < step.num_rows(); ++row) keys_[row] = place(positions[row]) | step.pairs[row];
            step.put(pairs_at_, keys_);
            for (int64_t row = 0; row < step.num_rows(); ++row) keys_[row] = place(positions[row]) | step.tokens[row];
            step.put(tokens_at_, keys_);
        }
        forget(place(positions[0]));
    }

    // Answers of the closest match at the same position, and those at any position after the same two tokens and after
    // the same one. first: the first kind of this source.
    void propose(const Context& path, int64_t position, int32_t first, Proposals& proposals) const {
        const uint64_t here = place(position);
        const int32_t* best = nullptr;
        bool is_found = false;
        const auto found = [&](Match match, const int32_t* answer) {
            proposals.add(first + match * num_candidates_, answer, num_candidates_);
            is_found = true;
        };
        if (by_place_) {
            if ((best = pairs_at_.find(here | path.pair()))) found(PAIR_AND_PLACE, best);
            else if ((best = tokens_at_.find(here | path.token()))) found(TOKEN_AND_PLACE, best);
            else if ((best = places_.find(here))) found(PLACE, best);
        }
        const int32_t* by_two = newest_.pairs.find(path.pair());
        const int32_t* by_one = newest_.tokens.find(path.token());
        if (by_two) found(PAIR, by_two);
        if (by_one && !(by_two && std::memcmp(by_one, by_two, sizeof(int32_t) * num_candidates_) == 0))
            found(TOKEN, by_one);
        if (!is_found && (best = places_.find(here))) found(PLACE, best);
    }

private:
    int num_candidates_;
    bool by_place_;
    uint64_t most_places_;
    NewestAnswers newest_;
    AnswerTable pairs_at_, tokens_at_, places_;
    std::vector<uint64_t> keys_;

    static uint64_t place(int64_t position) { return uint64_t(position) << 2 * BITS; }

    // Drops answers kept by position where there are too many.
    void forget(uint64_t least) {
        if (pairs_at_.size() > most_places_) {
            pairs_at_.forget(least);
            tokens_at_.forget(least);
        }
        if (places_.size() > most_places_) places_.forget(least);
    }
};
