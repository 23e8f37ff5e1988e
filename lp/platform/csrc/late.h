// The corpus, asked about a row only once something that it may say can become a node, or is learnt from.
//
// A search reads memory that is in no cache, so a tree is grown without it as far as that gives the same tree: by the
// bound below, a row waits until nothing likelier is left. What is found then takes the place that it would have had.
#pragma once

#include <algorithm>
#include <cstdint>

#include "corpus.h"
#include "proposals.h"

// The corpus while a tree grows, and what its best candidates are worth then.
struct LateCorpus {
    const Corpus* corpus = nullptr;  // null if it is not to be asked
    int32_t first_kind = 0;
    int64_t num_own = 0;
    double own[Corpus::MOST_LENGTHS];        // by the number of the length, where no list is surer
    double most_own = 0, most_rivalled = 0;  // the largest of these, and of those where another list is surer

    // Takes over the probabilities of all kinds.
    void begin(const Corpus* asked, int64_t first, int64_t num_own_kinds, const double* probabilities) {
        corpus = asked;
        first_kind = int32_t(first);
        num_own = num_own_kinds;
        most_own = most_rivalled = 0;
        if (!asked) return;
        for (int64_t number = 0; number < asked->num_lengths; ++number) {
            const int64_t kind = first + number * FOLLOWERS;
            own[number] = probabilities[kind];
            most_own = std::max(most_own, own[number]);
            most_rivalled = std::max(most_rivalled, probabilities[kind + num_own]);
        }
    }
};

// A row about which the corpus has not been asked, or what it has found. parent: the row above. serial: of the first list
// that waits.
struct LateRow {
    bool is_pending = false;
    int64_t parent = 0;
    bool has_waiting = false;  // the lists of the other sources wait, too: the corpus may be surer than they are
    double reached = 0, best = -1;  // the row's probability, and that of the best candidate of the other sources
    int64_t serial = 0;
    Proposal list{0, 0, 0};
    Corpus::Match found{0, -1, 0, {}};  // -1 matching lengths until the corpus has been asked

    // Begins to wait. first .. end: the lists of the other sources, ranked. Returns a probability that no candidate that
    // waits exceeds.
    double begin(const LateCorpus& late, double reached_row, const Proposal* first, const Proposal* end,
                 const double* probabilities) {
        is_pending = true;
        reached = reached_row;
        double most = std::max(late.most_own, late.most_rivalled);
        for (const Proposal* one = first; one != end; ++one) {
            const int64_t kind = one->kind % late.num_own;
            if (one->kind < late.num_own) best = probabilities[kind];
            most = std::max({most, probabilities[kind], probabilities[kind + late.num_own]});
        }
        has_waiting = best < late.most_own;  // of equally sure lists the first one is the surest
        return reached * (has_waiting ? most : late.most_rivalled);
    }

    // Asks the corpus what follows the row's path, and ranks that among the other lists. parent: the row above.
    void ask_corpus(const LateCorpus& late, const Context& path, const LateRow& parent, Proposal* first, Proposal* end,
                    Proposals& proposals) {
        is_pending = false;
        found = late.corpus->search(path, parent.found.num_matching < 0 ? nullptr : &parent.found);
        if (!found.count) return;
        const bool is_surest = late.own[found.number] > best;
        const int64_t kind = late.first_kind + found.number * FOLLOWERS + (is_surest ? 0 : late.num_own);
        for (Proposal* one = first; is_surest && one != end; ++one)
            if (one->kind < late.num_own) one->kind += int32_t(late.num_own);
        list = proposals.keep(int32_t(kind), found.tokens, found.count);
    }
};
