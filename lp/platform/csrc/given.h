// What Python hands over to make the drafts of a sequence; its counterparts are in lp/drafting/drafter.py.
#pragma once

#include <cstdint>

#include "answers.h"
#include "corpus.h"
#include "followers.h"

// Memory that Python has made and both sides read and write. Its counterpart is in lp/drafting/drafter.py.
struct Shared {
    // [2, 4, capacity] tokens, parents, depths and kinds of the rows of a tree. Each tree is written where the one before
    // the last was.
    int64_t* rows;
    int64_t* cells;       // [capacity] tokens of the window's cells, level by level
    double* odds;         // [capacity] probabilities of the offered nodes
    double *probabilities, *hits, *trials;  // [N] of the kinds of candidates
};

// The sources that a sequence uses, and the number of each one's first kind. What is null is not in use.
struct InUse {
    Followers* shared_ngrams;
    NewestAnswers* shared_answers;
    FixedAnswers* index;
    const Corpus* corpus;
    int64_t has_suffix, has_window, has_recycled, by_place;
    int64_t first_suffix, first_shared, first_shared_answer, first_window, first_recycled, first_index,
        first_corpus;
};

// Sizes and constants, which lp/drafting/ has defined.
struct Sizes {
    int64_t capacity, num_candidates;
    int64_t num_text_lengths, num_window_lengths;
    int64_t text_lengths[LONGEST], window_lengths[LONGEST];
    int64_t most_text_contexts, most_window_contexts, most_answers, most_places, num_own_kinds;
    double decay, least_probability;
    double gain_of_token, overdraft, most_funds;
};

// What bounds the tree that is planned with learning: `go_on` in lp/drafting/drafter.py. room, wanted: of the tree planned
// last. funds: before its step is noted, whose seconds are `spent` plain steps. loss_s: seconds of a plain step, or infinite
// where there is nothing to lose.
struct Terms {
    int64_t room, wanted;
    double funds, loss_s, spent;
};
