// Drafts from a corpus of texts: tests/lp/drafting/reference/sources.py, whose comments say more.
//
// N token ids of all texts, P places in them, V tokens of the vocabulary
#pragma once

#include <algorithm>
#include <cstdint>

#include "context.h"
#include "followers.h"
#include "proposals.h"

// Arrays that Python has mapped into memory and keeps there. ids: [N] of 2 or 4 bytes. first: [V + 1].
struct Corpus {
    static constexpr int MOST_LENGTHS = LONGEST;

    const void* ids;
    const uint32_t *places, *first;
    int64_t num_ids, id_bytes, vocab_size, most_places;
    int64_t num_lengths, lengths[MOST_LENGTHS];
    int64_t trial_steps, first_rest, longest_rest;  // see CorpusRest

    // What followed a path: the number of the match's length, and the tokens, the most frequent first. None if count is 0.
    // num_matching: how many of the lengths match.
    struct Match {
        int64_t number, num_matching;
        int count;
        int32_t tokens[FOLLOWERS];
    };

    Match propose(const Context& path, int32_t first_kind, Proposals& proposals) const {
        const Match found = search(path);
        if (found.count) proposals.add(first_kind + int32_t(found.number) * FOLLOWERS, found.tokens, found.count);
        return found;
    }

    // before: what was found for the path without its last token, if that is known.
    Match search(const Context& path, const Match* before = nullptr) const {
        int64_t tokens[LONGEST];
        for (int place = 0; place < LONGEST; ++place) {
            const uint64_t digit = path.words[place / IN_A_WORD] >> BITS * (place % IN_A_WORD) & digits(1);
            const int64_t token = int64_t(digit) - OFFSET;
            tokens[LONGEST - 1 - place] = token < vocab_size ? token : NO_TOKEN;  // the end of a text is no token, either
        }
        Range ranges[MOST_LENGTHS];
        int64_t number = find_longest(tokens, before, ranges);
        Match found{0, number, 0, {}};
        while (!found.count && number--) {  // the longest match may stand at the ends of texts alone
            if (ranges[number].is_empty()) ranges[number] = find(tokens, number);
            found.number = number;
            found.count = followers(ranges[number], lengths[number], found.tokens);
        }
        return found;
    }

private:
    // Of the sorted places.
    struct Range {
        int64_t begin = 0, end = 0;
        bool is_empty() const { return begin == end; }
    };

    int64_t token_at(int64_t place) const {
        if (place >= num_ids) return -1;
        return id_bytes == 2 ? static_cast<const uint16_t*>(ids)[place] : static_cast<const uint32_t*>(ids)[place];
    }

    // The token `depth` tokens behind a place.
    int64_t at(int64_t number, int64_t depth) const { return token_at(int64_t(places[number]) + depth); }

    // Whether the text at a place comes before the tokens (less than 0), begins with them (0) or comes after them. The
    // first token is right.
    int compare(int64_t number, const int64_t* tokens, int64_t count) const {
        const int64_t place = places[number];
        for (int64_t depth = 1; depth < count; ++depth)
            if (const int64_t token = token_at(place + depth); token != tokens[depth])
                return token < tokens[depth] ? -1 : 1;
        return 0;
    }

    // What begins with the last tokens of a path, as many as the length with that number has. Both ends are looked for at
    // once until a place is met that matches.
    Range find(const int64_t* path, int64_t number) const {
        const int64_t count = lengths[number];
        const int64_t* tokens = path + LONGEST - count;
        if (tokens[0] < 0 || tokens[0] >= vocab_size) return {};
        int64_t low = first[tokens[0]], high = first[tokens[0] + 1];
        while (low < high) {
            const int64_t middle = (low + high) / 2;
            const int order = compare(middle, tokens, count);
            if (order == 0) {
                return {bound(low, middle, [&](int64_t at) { return compare(at, tokens, count) < 0; }),
                        bound(middle + 1, high, [&](int64_t at) { return compare(at, tokens, count) == 0; })};
            }
            (order < 0 ? low : high) = order < 0 ? middle + 1 : middle;
        }
        return {};
    }

    // The first place of low .. high for which `is_before` does not hold.
    template <class IsBefore>
    static int64_t bound(int64_t low, int64_t high, IsBefore is_before) {
        while (low < high) {
            const int64_t middle = (low + high) / 2;
            if (is_before(middle)) low = middle + 1;
            else high = middle;
        }
        return low;
    }

    // How many of the lengths match somewhere, by bisection: if a length does not match, no longer one does. One token
    // more makes the longest match at most that much longer, and mostly does. Writes the ranges that it has found.
    int64_t find_longest(const int64_t* path, const Match* before, Range* ranges) const {
        int64_t low = 0, high = before ? std::min(num_lengths, before->num_matching + 1) : num_lengths;
        for (int64_t middle = before ? high - 1 : high / 2; low < high; middle = (low + high) / 2) {
            ranges[middle] = find(path, middle);
            if (ranges[middle].is_empty()) high = middle;
            else low = middle + 1;
        }
        return low;
    }

    // Writes the most frequent tokens behind a match to `best`, and returns how many there are. Equal tokens are
    // neighbours, so that only the ends of their runs are looked for.
    int followers(const Range& range, int64_t length, int32_t* best) const {
        const int64_t size = range.end - range.begin, num_places = std::min(size, most_places);
        const double step = std::max(1.0, double(size) / double(most_places));
        const auto token_of = [&](int64_t number) {
            return at(range.begin + int64_t(double(number) * step), length);
        };
        int64_t counts[FOLLOWERS];
        int num_best = 0;
        for (int64_t begin = 0, end; begin < num_places; begin = end) {
            if (num_best == FOLLOWERS && num_places - begin <= counts[FOLLOWERS - 1]) break;
            const int64_t token = token_of(begin);
            int64_t width = 1;
            while (begin + width < num_places && token_of(begin + width) == token) width *= 2;
            const auto is_same = [&](int64_t number) { return token_of(number) == token; };
            end = bound(begin + width / 2 + 1, std::min(begin + width, num_places), is_same);
            const int64_t count = end - begin;
            int rank = num_best;
            while (rank && counts[rank - 1] < count) --rank;
            if (rank == FOLLOWERS || token == vocab_size) continue;
            num_best = std::min(num_best + 1, FOLLOWERS);
            for (int later = num_best - 1; later > rank; --later) {
                counts[later] = counts[later - 1];
                best[later] = best[later - 1];
            }
            counts[rank] = count;
            best[rank] = int32_t(token);
        }
        return num_best;
    }
};

// Says for one sequence whether its corpus rests: CorpusRest in tests/lp/drafting/reference/sources.py.
class CorpusRest {
public:
    explicit CorpusRest(const Corpus* corpus) : corpus_(corpus) {
        if (corpus) num_left_ = corpus->trial_steps, next_rest_ = corpus->first_rest;
    }
    // Whether there is a corpus that does not rest.
    bool is_awake() const { return corpus_ && !is_resting_; }

    void took_step(int64_t num_right) {
        num_right_ += num_right;
        if (--num_left_) return;
        is_resting_ = !is_resting_ && !num_right_;
        num_left_ = is_resting_ ? next_rest_ : corpus_->trial_steps;
        if (is_resting_) next_rest_ = std::min(corpus_->longest_rest, 2 * next_rest_);
        else if (num_right_) next_rest_ = corpus_->first_rest;
        num_right_ = 0;
    }

private:
    const Corpus* corpus_;
    bool is_resting_ = false;
    int64_t num_left_ = 0, num_right_ = 0, next_rest_ = 0;
};
