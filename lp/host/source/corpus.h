// Drafts from a corpus of texts: lp/drafting/corpus/source.py, whose comments say more.
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

    void propose(const Context& path, int32_t first_kind, Proposals& proposals) const {
        int64_t tokens[LONGEST];
        for (int place = 0; place < LONGEST; ++place)
            tokens[LONGEST - 1 - place] =
                int64_t(path.words[place / IN_A_WORD] >> BITS * (place % IN_A_WORD) & digits(1)) - OFFSET;
        int64_t begins[MOST_LENGTHS], ends[MOST_LENGTHS], number = 0;
        for (; number < num_lengths; ++number) {
            find(tokens + LONGEST - lengths[number], lengths[number], begins[number], ends[number]);
            if (begins[number] == ends[number]) break;
        }
        while (number--) {
            int32_t found[FOLLOWERS];
            if (const int count = followers(begins[number], ends[number], lengths[number], found)) {
                proposals.add(first_kind + int32_t(number) * FOLLOWERS, found, count);
                return;
            }
        }
    }

private:
    // The token `depth` tokens behind a place.
    int64_t at(int64_t number, int64_t depth) const {
        const int64_t place = int64_t(places[number]) + depth;
        if (place >= num_ids) return -1;
        return id_bytes == 2 ? static_cast<const uint16_t*>(ids)[place] : static_cast<const uint32_t*>(ids)[place];
    }

    int64_t bound(int64_t begin, int64_t end, int64_t depth, int64_t token) const {
        while (begin < end) {
            const int64_t middle = (begin + end) / 2;
            if (at(middle, depth) < token) begin = middle + 1;
            else end = middle;
        }
        return begin;
    }

    // The range in `places` of what begins with the tokens.
    void find(const int64_t* tokens, int64_t count, int64_t& begin, int64_t& end) const {
        begin = end = 0;
        if (tokens[0] < 0 || tokens[0] >= vocab_size) return;
        begin = first[tokens[0]];
        end = first[tokens[0] + 1];
        for (int64_t depth = 1; depth < count && begin < end; ++depth) {
            const int64_t before = begin;
            begin = bound(before, end, depth, tokens[depth]);
            end = bound(before, end, depth, tokens[depth] + 1);
        }
    }

    // Writes the most frequent tokens behind a match to `best`, and returns how many there are.
    int followers(int64_t begin, int64_t end, int64_t length, int32_t* best) const {
        const double step = std::max(1.0, double(end - begin) / double(most_places));
        int64_t counts[FOLLOWERS], count = 0, run = -1;
        int num_best = 0;
        const auto close = [&] {
            if (!count || run == vocab_size) return;
            int rank = num_best;
            while (rank && counts[rank - 1] < count) --rank;
            if (rank == FOLLOWERS) return;
            num_best = std::min(num_best + 1, FOLLOWERS);
            for (int later = num_best - 1; later > rank; --later) {
                counts[later] = counts[later - 1];
                best[later] = best[later - 1];
            }
            counts[rank] = count;
            best[rank] = int32_t(run);
        };
        for (int64_t number = 0; number < std::min(end - begin, most_places); ++number) {
            const int64_t token = at(begin + int64_t(double(number) * step), length);
            if (token == run) {
                ++count;
                continue;
            }
            close();
            run = token;
            count = 1;
        }
        close();
        return num_best;
    }
};
