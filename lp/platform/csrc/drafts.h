// The drafts of one sequence: its sources, the tree planned last, and what is learnt from the tree's answers.
//
// lp/drafting/drafter.py does the same in Python.
//
// R rows of a tree, K candidates of each row, N kinds of candidates
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "given.h"
#include "growth.h"
#include "python.h"
#include "tree.h"

class Drafts {
public:
    Figures figures{1.0};

    Drafts(const Shared& shared, const InUse& in_use, const Sizes& sizes, const Cost& cost)
        : shared_(shared), in_use_(in_use), sizes_(sizes), cost_(cost),
          rows_(rows_at(shared.rows)), others_(rows_at(shared.rows + 4 * sizes.capacity)), targets_(sizes.capacity),
          candidates_(sizes.capacity * sizes.num_candidates),
          suffix_(sizes.text_lengths, sizes.num_text_lengths, sizes.most_text_contexts),
          window_(sizes.window_lengths, sizes.num_window_lengths, sizes.most_window_contexts),
          recycled_(int(sizes.num_candidates), in_use.by_place, sizes.most_answers, sizes.most_places),
          corpus_rest_(in_use.corpus) {}

    // Makes the end of a sequence the root. tokens: the last ones, at least LONGEST of them if there are so many.
    void move_to(int64_t position, const int64_t* tokens, int64_t count) {
        position_ = position;
        root_ = context_of(tokens, count);
    }

    // Lets the sources learn what followed the root, which moves to its end.
    void learn_text(const int64_t* tokens, int64_t count) {
        if (in_use_.has_suffix) suffix_.add_text(root_, tokens, count);
        if (in_use_.shared_ngrams) in_use_.shared_ngrams->add_text(root_, tokens, count);
        for (int64_t at = 0; at < count; ++at) root_ = extended(root_, tokens[at]);
        position_ += count;
    }

    // Adds n-grams of the window: `count` of `length` tokens each.
    void learn_ngrams(const int64_t* ngrams, int64_t count, int64_t length) {
        if (in_use_.has_window)
            for (int64_t at = 0; at < count; ++at, ngrams += length)
                window_.add(context_of(ngrams, length - 1), int32_t(ngrams[length - 1]));
    }

    // Proposals of all sources for what follows a path that ends `depth` tokens below the root.
    void propose(const Context& path, int64_t depth, Proposals& proposals) const {
        propose_quickly(path, depth, proposals);
        if (corpus_rest_.is_awake()) in_use_.corpus->propose(path, int32_t(in_use_.first_corpus), proposals);
    }

    // Those of all sources but the corpus.
    void propose_quickly(const Context& path, int64_t depth, Proposals& proposals) const {
        const int most = int(sizes_.num_candidates);
        if (in_use_.has_suffix) suffix_.propose(path, int32_t(in_use_.first_suffix), proposals);
        if (in_use_.shared_ngrams) {
            in_use_.shared_ngrams->propose(path, int32_t(in_use_.first_shared), proposals);
            const NewestAnswers& answers = *in_use_.shared_answers;
            const int32_t* found = answers.pairs.find(path.pair());
            int width = answers.pairs.width();
            if (!found) {
                found = answers.tokens.find(path.token());
                width = answers.tokens.width();
            }
            if (found) proposals.add(int32_t(in_use_.first_shared_answer), found, std::min(most, width));
        }
        if (in_use_.has_window) window_.propose(path, int32_t(in_use_.first_window), proposals);
        if (in_use_.has_recycled)
            recycled_.propose(path, position_ + depth, int32_t(in_use_.first_recycled), proposals);
        if (in_use_.index) {
            if (const int32_t* by_two = in_use_.index->pairs.find(path.pair()))
                proposals.add(int32_t(in_use_.first_index), by_two, std::min(most, in_use_.index->pairs.width()));
            else if (const int32_t* by_one = in_use_.index->tokens.find(path.token()))
                proposals.add(int32_t(in_use_.first_index) + most, by_one,
                              std::min(most, in_use_.index->tokens.width()));
        }
    }

    // Drops drafts from the tree planned last. rows: the root and those that stay, ascending, with all ancestors of
    // each. The window's cells stay, behind them. Returns the number of rows.
    int64_t keep(const int64_t* rows, int64_t count) {
        std::vector<int64_t> places(num_rows_, -1);
        std::vector<int64_t> kept(rows, rows + count), before(std::move(grown_));
        for (int64_t row = num_drafts_; row < num_rows_; ++row) kept.push_back(row);
        grown_.clear();
        for (int64_t place = 0; place < int64_t(kept.size()); ++place) {
            const int64_t row = kept[place];
            places[row] = place;
            rows_.tokens[place] = rows_.tokens[row];
            rows_.parents[place] = row ? places[rows_.parents[row]] : -1;
            rows_.depths[place] = rows_.depths[row];
            if (row >= num_drafts_) continue;
            rows_.kinds[place] = rows_.kinds[row];
            grown_.push_back(before.empty() ? row : before[row]);
        }
        num_drafts_ = count;
        return num_rows_ = int64_t(kept.size());
    }

    // Plans the root alone.
    void watch() {
        grown_.clear();
        std::swap(rows_, others_);
        begin_growth();
        grower_.start(root_, rows_);
        propose(root_, 0, grower_.proposals);
        grower_.proposals.rank(shared_.probabilities, sizes_.num_own_kinds);
        grower_.proposals.end_row();
        num_rows_ = num_drafts_ = 1;
        figures = {1.0};
    }

    // Plans a tree of drafts and a window of `num_levels` levels. Returns the number of rows of the root and the drafts.
    int64_t grow(const Bounds& bounds, int64_t num_levels) {
        grown_.clear();
        std::swap(rows_, others_);
        begin_growth();
        num_drafts_ = grower_.grow(
            root_, [this](const Context& path, int64_t depth) { propose_quickly(path, depth, grower_.proposals); },
            shared_.probabilities, sizes_.least_probability, cost_, bounds, rows_, figures);
        num_rows_ = num_drafts_;
        add_window(num_levels, num_levels ? bounds.other_rows / num_levels : 0);
        return num_drafts_;
    }

    // Grows a tree of which `take` keeps the first nodes. Returns the number of nodes.
    int64_t offer(int64_t max_depth, int64_t most_rows, double least) {
        grown_.clear();
        std::swap(rows_, others_);
        begin_growth();
        return grower_.offer(
            root_, [this](const Context& path, int64_t depth) { propose_quickly(path, depth, grower_.proposals); },
            shared_.probabilities, std::max(least, sizes_.least_probability), max_depth, most_rows, rows_, shared_.odds);
    }

    // Plans the tree of the first `num_nodes` nodes that were offered, and a window of `num_levels` levels.
    void take(int64_t num_nodes, int64_t num_cells, int64_t num_levels) {
        num_rows_ = num_drafts_ = 1 + num_nodes;
        figures = {1.0};
        for (int64_t node = 0; node < num_nodes; ++node) figures.expected += shared_.odds[node];
        add_window(num_levels, num_levels ? num_cells / num_levels : 0);
    }

    // The likeliest of what was proposed to follow the root; null if nothing was.
    const Proposal* likeliest() const {
        const Proposals& proposals = grower_.proposals;
        const Proposal* best = nullptr;
        for (const Proposal* one = proposals.begin(0); one != proposals.end(0); ++one)
            if (!best || shared_.probabilities[one->kind] > shared_.probabilities[best->kind]) best = one;
        return best;
    }
    const Proposals& proposals() const { return grower_.proposals; }

    // Walks down the tree by its targets; learns from the accepted path, and from the candidates of all rows if there
    // are any. answers: `stride` bytes apart, each row's candidates or its target alone. See `accepted`.
    void commit(const char* answers, int64_t stride, bool has_candidates) {
        const int64_t width = has_candidates ? sizes_.num_candidates : 1;
        for (int64_t row = 0; row < num_rows_; ++row, answers += stride) {
            std::memcpy(&candidates_[row * width], answers, sizeof(int32_t) * width);
            targets_[row] = candidates_[row * width];
        }
        const Tree tree{rows_.tokens, rows_.parents, num_rows_};
        verify(tree, targets_.data(), num_rows_, levels_);
        right_rows_.assign(1, 0);
        accepted_.assign(1, targets_[0]);
        const int64_t* level = levels_.rows.data();
        learn_kinds(level, 0, targets_[0]);
        bool is_draft = true;
        for (const int64_t size : levels_.sizes) {
            const int64_t token = targets_[level[0]];
            right_rows_.push_back(level[0]);
            accepted_.push_back(token);
            is_draft = is_draft && learn_kinds(level, size, token);
            level += size;
        }
        path_.clear();
        if (int64_t(levels_.rows.size()) == levels_.count())
            for (const int64_t row : right_rows_) path_.push_back(rows_.tokens[row]);
        if (in_use_.corpus && num_drafts_ > 1) corpus_rest_.took_step(num_right_of_corpus());
        if (has_candidates) learn_answers();
        learn_text(accepted_.data(), int64_t(accepted_.size()));
    }

    // Plans the next tree after `commit`, if the terms allow it. Returns the number of rows of the root and the drafts, or 0.
    int64_t plan_after(const Terms& terms) {
        const int64_t count = int64_t(accepted_.size()), wanted = terms.wanted - count;
        if (wanted <= 0) return 0;
        const double gain = sizes_.gain_of_token * double(count) - terms.spent;
        const double funds = std::min(sizes_.most_funds, terms.funds + gain);
        if (funds < 0 && std::isfinite(terms.loss_s)) return 0;
        const double limit_s = (1 + std::max(0.0, funds) + sizes_.overdraft) * terms.loss_s;
        const int64_t depth = std::max<int64_t>(0, std::min(terms.room - count, wanted - 1));
        return grow({depth, 0, limit_s}, 0);
    }

    // What was accepted: `Accepted` in lp/tree.py as a tuple of its parts, the tokens of its rows, and a number.
    // There are none of these tokens if several rows had guessed the same token, as then a row may not be a child of the
    // one before it.
    PyObject* accepted(int64_t number) const {
        const int64_t count = int64_t(accepted_.size()), num_levels = levels_.count();
        PyObject *found = PyTuple_New(5), *levels = PyList_New(num_levels);
        const int64_t* level = levels_.rows.data();
        for (int64_t number = 0; number < num_levels; level += levels_.sizes[number++])
            PyList_SetItem(levels, number, list_of(level, levels_.sizes[number]));
        PyTuple_SetItem(found, 0, list_of(accepted_.data(), count));
        PyTuple_SetItem(found, 1, list_of(right_rows_.data(), count));
        PyTuple_SetItem(found, 2, levels);
        PyTuple_SetItem(found, 3, list_of(path_.data(), int64_t(path_.size())));
        PyTuple_SetItem(found, 4, PyLong_FromLongLong(number));
        return found;
    }

    // The inputs of the tree's forward, [R, 2 + R]: tokens, positions, and which rows each row sees. cached: length of
    // the prefix.
    void inputs(int64_t cached, int64_t* packed) const {
        const int64_t width = 2 + num_rows_;
        std::memset(packed, 0, sizeof(int64_t) * num_rows_ * width);
        for (int64_t row = 0; row < num_rows_; ++row, packed += width) {
            if (row) std::memcpy(packed, packed + (rows_.parents[row] - row) * width, sizeof(int64_t) * width);
            packed[0] = rows_.tokens[row];
            packed[1] = cached + rows_.depths[row];
            packed[2 + row] = 1;
        }
    }

private:
    Shared shared_;
    InUse in_use_;
    Sizes sizes_;
    Cost cost_;
    Rows rows_, others_;  // of the tree planned last, and of the one before it
    std::vector<int64_t> targets_;
    std::vector<int32_t> candidates_;
    Followers suffix_, window_;
    Recycled recycled_;
    CorpusRest corpus_rest_;
    Grower grower_;
    Context root_{};
    int64_t position_ = 0, num_rows_ = 0, num_drafts_ = 0;
    Levels levels_;
    StepAnswers answers_{};
    std::vector<Proposal> lists_;  // of a row that is learnt from
    std::vector<int64_t> accepted_, right_rows_, path_, positions_;
    std::vector<int64_t> grown_;  // of each draft that `keep` has left, the row in which it was grown; empty if all are there

    void begin_growth() {
        const Corpus* asked = corpus_rest_.is_awake() ? in_use_.corpus : nullptr;
        grower_.late.begin(asked, in_use_.first_corpus, sizes_.num_own_kinds, shared_.probabilities);
    }

    Rows rows_at(int64_t* memory) const {
        const int64_t capacity = sizes_.capacity;
        return {memory, memory + capacity, memory + 2 * capacity, memory + 3 * capacity};
    }

    // Adds the window's cells: the first level is a chain under the root, the cells of the others are children of those
    // above them (lp/methods/window.py).
    void add_window(int64_t num_levels, int64_t num_columns) {
        for (int64_t level = 0; level < num_levels; ++level)
            for (int64_t column = 0; column < num_columns; ++column) {
                const int64_t row = num_rows_++;
                rows_.tokens[row] = shared_.cells[level * num_columns + column];
                rows_.parents[row] = level ? row - num_columns : column ? row - 1 : 0;
                rows_.depths[row] = 1 + level + column;
            }
    }

    // Compares what was proposed to follow a row, in the tree or cut from it, with the token that did. level: rows with
    // the same path; the first draft among them counts, and the root if the level is empty. Returns whether there is one.
    bool learn_kinds(const int64_t* level, int64_t size, int64_t right) {
        int64_t row = size ? num_drafts_ : 0;
        for (int64_t at = 0; at < size && row == num_drafts_; ++at) row = std::min(level[at], num_drafts_);
        if (row == num_drafts_) return false;
        const Proposals& proposals = grower_.proposals;
        if (!grown_.empty()) row = grown_[row];
        int32_t rival = NONE;  // the best candidate of the surest list
        grower_.lists_of(row, lists_);
        for (const Proposal& list : lists_)
            if (list.kind < sizes_.num_own_kinds) rival = *proposals.candidates(list);
        for (const Proposal& list : lists_) {
            const int32_t* candidates = proposals.candidates(list);
            const bool is_rivalled = list.kind >= sizes_.num_own_kinds;
            for (int32_t rank = 0; rank < list.count; ++rank) {
                const int32_t kind = list.kind + rank;
                if (is_rivalled && candidates[rank] == rival) continue;  // it counts for the surest list alone
                const double trials = sizes_.decay * shared_.trials[kind] + 1;
                const double hits = sizes_.decay * shared_.hits[kind] + (candidates[rank] == right ? 1 : 0);
                shared_.trials[kind] = trials;
                shared_.hits[kind] = hits;
                shared_.probabilities[kind] = hits / trials;
            }
        }
        return true;
    }

    // How many accepted drafts are the corpus'.
    int64_t num_right_of_corpus() const {
        const int64_t first = in_use_.first_corpus, num_kinds = in_use_.corpus->num_lengths * FOLLOWERS;
        return std::count_if(right_rows_.begin() + 1, right_rows_.end(), [&](int64_t row) {
            const int64_t kind = row < num_drafts_ ? rows_.kinds[row] % sizes_.num_own_kinds : -1;
            return kind >= first && kind < first + num_kinds;
        });
    }

    // Gives the answers of all rows to the sources that keep them.
    void learn_answers() {
        answers_.pairs.resize(num_rows_);
        answers_.tokens.resize(num_rows_);
        positions_.resize(num_rows_);
        for (int64_t row = 0; row < num_rows_; ++row) {
            const uint64_t own = uint64_t(rows_.tokens[row] + OFFSET);
            const uint64_t before = row ? uint64_t(rows_.tokens[rows_.parents[row]] + OFFSET) << BITS : 0;
            answers_.pairs[row] = row ? before | own : root_.pair();
            answers_.tokens[row] = answers_.pairs[row] & digits(1);
            positions_[row] = position_ + rows_.depths[row];
        }
        answers_.answers = candidates_.data();
        answers_.num_candidates = int(sizes_.num_candidates);
        answers_.right_rows = right_rows_.data();
        answers_.num_right = int64_t(right_rows_.size());
        if (in_use_.shared_ngrams) in_use_.shared_answers->add(answers_);
        if (in_use_.has_recycled) recycled_.learn(answers_, positions_.data());
    }
};
