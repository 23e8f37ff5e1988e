// What the sources propose to follow the rows of a growing tree: lists of candidates, best first, for each row.
#pragma once

#include <cstdint>
#include <vector>

#include "ordered_table.h"

struct Proposal {
    int32_t kind;   // of the first candidate; the next candidate has the next kind, and so on
    int32_t first;  // of its candidates among all
    int32_t count;
};

class Proposals {
public:
    void clear() {
        lists_.clear();
        candidates_.clear();
        ends_.clear();
    }

    // Adds a list for the row that is being asked about. It ends at the first number that is no token: NONE, or what
    // answers a row after which no token may follow. No list is empty.
    void add(int32_t kind, const int32_t* candidates, int most) {
        int count = 0;
        while (count < most && candidates[count] >= 0) ++count;
        if (!count) return;
        lists_.push_back({kind, int32_t(candidates_.size()), count});
        candidates_.insert(candidates_.end(), candidates, candidates + count);
    }

    // Keeps a list for a row that was asked about before. It is not among that row's lists.
    Proposal keep(int32_t kind, const int32_t* candidates, int count) {
        candidates_.insert(candidates_.end(), candidates, candidates + count);
        return {kind, int32_t(candidates_.size()) - count, count};
    }

    // Gives all lists of the row at hand their rivalled kinds but the one that is surest of its best candidate. See
    // `ranked` in tests/lp/drafting/reference/sources.py.
    void rank(const double* probabilities, int64_t num_own) {
        const size_t begin = ends_.empty() ? 0 : size_t(ends_.back());
        size_t surest = begin;
        for (size_t at = begin; at < lists_.size(); ++at)
            if (probabilities[lists_[at].kind] > probabilities[lists_[surest].kind]) surest = at;
        for (size_t at = begin; at < lists_.size(); ++at)
            if (at != surest) lists_[at].kind += int32_t(num_own);
    }

    // Ends the lists of a row.
    void end_row() { ends_.push_back(int32_t(lists_.size())); }

    const Proposal* begin(int64_t row) const { return lists_.data() + (row ? ends_[row - 1] : 0); }
    Proposal* begin(int64_t row) { return lists_.data() + (row ? ends_[row - 1] : 0); }
    Proposal* end(int64_t row) { return lists_.data() + ends_[row]; }
    const Proposal* end(int64_t row) const { return lists_.data() + ends_[row]; }
    const int32_t* candidates(const Proposal& proposal) const { return candidates_.data() + proposal.first; }

private:
    std::vector<Proposal> lists_;
    std::vector<int32_t> candidates_;
    std::vector<int32_t> ends_;
};
