// Grows a tree of drafts best first: tests/lp/drafting/reference/growth.py, whose comments say why.
//
// Every number is computed by the same operations in the same order as there, so that the trees are the same.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "context.h"
#include "late.h"
#include "proposals.h"

// Seconds of a step: StepCost in lp/step_cost.py, which changes the tables between two steps.
struct Cost {
    int64_t most_rows, num_parts;
    const double* host_row;  // [1]
    const double *shared, *shared_slopes, *alone, *alone_slopes;  // [M + 1]

    int64_t largest_part(int64_t num_rows, int64_t depth) const {
        if (num_parts == 1) return num_rows;
        const int64_t repeated = (num_parts - 1) * depth / 2;
        const int64_t share = (num_rows + repeated + num_parts - 1) / num_parts;
        return std::min(num_rows, std::max(depth + 1, share));
    }
    double step_s(int64_t num_rows, int64_t depth) const {
        const double shared_s = shared[largest_part(num_rows, depth)] + *host_row * double(num_rows);
        return num_parts == 1 ? shared_s : std::min(shared_s, alone[num_rows]);
    }
    double row_s(int64_t num_rows, int64_t depth) const {
        return std::min(shared_slopes[largest_part(num_rows, depth)], alone_slopes[num_rows]);
    }
};

// The candidates that may become nodes next. Each list of candidates has one entry: the best that has not been taken.
class Frontier {
public:
    struct Entry {
        double odds;
        int64_t serial;
        double reached;
        int64_t row;
        Proposal list;  // its first candidate is the next one; without any, the row is to be asked about (see late.h)
    };

    void clear() {
        heap_.clear();
        serial_ = 0;
    }
    bool empty() const { return heap_.empty(); }

    void add(int64_t row, double reached, Proposal list, const double* probabilities, double least) {
        push({reached * probabilities[list.kind], ++serial_, reached, row, list}, least);
    }
    void push(const Entry& entry, double least) {
        if (entry.odds < least) return;
        heap_.push_back(entry);
        std::push_heap(heap_.begin(), heap_.end(), comes_later);
    }
    // Keeps numbers for entries that may come later; returns the first.
    int64_t reserve(int64_t count) { return (serial_ += count) - count + 1; }

    // The entry that comes next.
    const Entry& top() const { return heap_.front(); }
    bool is_late() const { return !top().list.count; }
    // Takes the row that is to be asked about.
    int64_t take_late() {
        std::pop_heap(heap_.begin(), heap_.end(), comes_later);
        const int64_t row = heap_.back().row;
        heap_.pop_back();
        return row;
    }
    // Takes the likeliest candidate, and puts the next one of its list in its place.
    Entry take(const double* probabilities, double least) {
        std::pop_heap(heap_.begin(), heap_.end(), comes_later);
        const Entry likeliest = heap_.back();
        heap_.pop_back();
        const Proposal& list = likeliest.list;
        if (list.count > 1)
            add(likeliest.row, likeliest.reached, {list.kind + 1, list.first + 1, list.count - 1}, probabilities, least);
        return likeliest;
    }

private:
    std::vector<Entry> heap_;
    int64_t serial_ = 0;

    static bool comes_later(const Entry& one, const Entry& two) {
        return one.odds != two.odds ? one.odds < two.odds : one.serial > two.serial;
    }
};

// What bounds a tree. See `grow` in tests/lp/drafting/reference/growth.py.
struct Bounds {
    int64_t max_depth, other_rows;
    double limit_s;
};

// The rows of a tree, as arrays that the caller owns.
struct Rows {
    int64_t *tokens, *parents, *depths, *kinds;
};

// What is expected of a tree: the tokens that its step yields.
struct Figures {
    double expected;
};

class Grower {
public:
    Proposals proposals;
    LateCorpus late;

    // Writes the rows of a tree under the last token of `context`, and returns how many there are. `propose(path,
    // depth)` adds what may follow a path to `proposals`, without the corpus. least: the least probability of a node.
    template <class Propose>
    int64_t grow(const Context& context, Propose propose, const double* probabilities, double least, const Cost& cost,
                 const Bounds& bounds, const Rows& rows, Figures& figures) {
        start(context, rows);
        ask(0, 1.0, true, propose, probabilities, least, rows);
        if (!bounds.max_depth) frontier_.clear();
        const int64_t other = bounds.other_rows, most_rows = cost.most_rows - other;
        double best_speed = 1.0 / cost.step_s(1 + other, 0), expected = 1.0;
        int64_t best_rows = 1, deepest = 0;
        figures = {1.0};
        while (!frontier_.empty()) {
            const double least_odds = best_speed * cost.row_s(num_rows() + other, deepest);
            if (num_rows() >= most_rows || frontier_.top().odds < least_odds) break;
            if (ask_late(probabilities, least)) continue;
            const Frontier::Entry found = frontier_.take(probabilities, least);
            const int64_t row = add(found, rows);
            if (!row) continue;
            expected += found.odds;
            deepest = std::max(deepest, rows.depths[row]);
            const double seconds = cost.step_s(num_rows() + other, deepest);
            if (seconds > bounds.limit_s) break;
            const double speed = expected / seconds;
            if (speed >= best_speed) {
                best_speed = speed;
                best_rows = num_rows();
                figures.expected = expected;
            }
            ask(row, found.odds, rows.depths[row] < bounds.max_depth, propose, probabilities, least, rows);
        }
        return best_rows;
    }

    // Grows a tree of at most `most_rows` rows for others to cut. Writes the probability of each node to `odds`, and
    // returns the number of nodes. See `grow_offer` in tests/lp/drafting/reference/growth.py.
    template <class Propose>
    int64_t offer(const Context& context, Propose propose, const double* probabilities, double least, int64_t max_depth,
                  int64_t most_rows, const Rows& rows, double* odds) {
        start(context, rows);
        ask(0, 1.0, true, propose, probabilities, least, rows);
        if (!max_depth) frontier_.clear();
        while (!frontier_.empty() && num_rows() < most_rows) {
            if (ask_late(probabilities, least)) continue;
            const Frontier::Entry found = frontier_.take(probabilities, least);
            const int64_t row = add(found, rows);
            if (!row) continue;
            odds[row - 1] = found.odds;
            ask(row, found.odds, rows.depths[row] < max_depth, propose, probabilities, least, rows);
        }
        return num_rows() - 1;
    }

    // Begins with the root alone.
    void start(const Context& context, const Rows& rows) {
        proposals.clear();
        frontier_.clear();
        last_child_.assign(1, 0);
        next_child_.assign(1, 0);
        contexts_.assign(1, context);
        late_.assign(1, {});
        rows.tokens[0] = int64_t(context.token()) - OFFSET;
        rows.parents[0] = -1;
        rows.depths[0] = 0;
        rows.kinds[0] = -1;
    }

    // All lists of a row, which has been asked about; that of the corpus is the last.
    void lists_of(int64_t row, std::vector<Proposal>& lists) {
        ask_corpus(row);
        lists.assign(proposals.begin(row), proposals.end(row));
        if (late_[row].list.count) lists.push_back(late_[row].list);
    }

private:
    Frontier frontier_;
    std::vector<Context> contexts_;
    std::vector<LateRow> late_;
    std::vector<int64_t> last_child_, next_child_;  // of each row the child added last, and the child before it; or 0

    int64_t num_rows() const { return int64_t(contexts_.size()); }

    // Asks what may follow a row; without `asks` nothing may.
    template <class Propose>
    void ask(int64_t row, double reached, bool asks, Propose& propose, const double* probabilities, double least,
             const Rows& rows) {
        if (asks) propose(contexts_[row], rows.depths[row]);
        if (row == 0 && late.corpus) late_[0].found = late.corpus->propose(contexts_[0], late.first_kind, proposals);
        proposals.rank(probabilities, late.num_own);
        proposals.end_row();
        late_.resize(row + 1);
        late_[row].parent = std::max<int64_t>(0, rows.parents[row]);
        double odds = 0;
        if (row && asks && late.corpus)
            odds = late_[row].begin(late, reached, proposals.begin(row), proposals.end(row), probabilities);
        if (!late_[row].has_waiting)
            for (const Proposal* list = proposals.begin(row); list != proposals.end(row); ++list)
                frontier_.add(row, reached, *list, probabilities, least);
        if (late_[row].is_pending) wait(row, odds, least);
    }

    // Lets a row wait for the corpus. odds: a bound of what waits.
    void wait(int64_t row, double odds, double least) {
        LateRow& one = late_[row];
        const int64_t num_waiting = one.has_waiting ? proposals.end(row) - proposals.begin(row) : 0;
        one.serial = frontier_.reserve(num_waiting + 1);
        frontier_.push({odds, one.serial, one.reached, row, {0, 0, 0}}, least);
    }

    // Asks the corpus about the row that comes next, if that row waits for it.
    bool ask_late(const double* probabilities, double least) {
        if (!frontier_.is_late()) return false;
        const int64_t row = frontier_.take_late();
        ask_corpus(row);
        const LateRow& one = late_[row];
        int64_t serial = one.serial;
        const auto add = [&](const Proposal& list) {
            frontier_.push({one.reached * probabilities[list.kind], serial++, one.reached, row, list}, least);
        };
        if (one.has_waiting) std::for_each(proposals.begin(row), proposals.end(row), add);
        if (one.list.count) add(one.list);
        return true;
    }

    void ask_corpus(int64_t row) {
        if (late_[row].is_pending)
            late_[row].ask_corpus(late, contexts_[row], late_[late_[row].parent], proposals.begin(row),
                                  proposals.end(row), proposals);
    }

    // Adds a candidate as a node. Returns its row, or 0 if there is a node for the same token.
    int64_t add(const Frontier::Entry& found, const Rows& rows) {
        const int32_t token = *proposals.candidates(found.list);
        if (has_child(found.row, token, rows)) return 0;
        const int64_t row = num_rows();
        next_child_.push_back(last_child_[found.row]);
        last_child_[found.row] = row;
        last_child_.push_back(0);
        rows.tokens[row] = token;
        rows.parents[row] = found.row;
        rows.depths[row] = rows.depths[found.row] + 1;
        rows.kinds[row] = found.list.kind;
        contexts_.push_back(extended(contexts_[found.row], token));
        return row;
    }

    bool has_child(int64_t parent, int64_t token, const Rows& rows) const {
        int64_t child = last_child_[parent];
        while (child && rows.tokens[child] != token) child = next_child_[child];
        return child;
    }
};
