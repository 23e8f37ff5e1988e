// What a forward reads of the sequences of a step: the memory of a GPU's graphs (lp/model/gpu/step_tensors.py), and the
// rows of the native forward (lp/model/cpu/forward.py).
//
// R rows of B sequences, M moves at most in G groups, P pages of a sequence at most
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

// The rows of one sequence's tree. cached: tokens before them.
struct TreeRows {
    const int64_t *tokens, *parents, *depths;
    int64_t num_rows, cached;
};

// StepBuffer's memory on the host; see StepTensors. Python hands it over as numbers in this order. num_choices: numbers
// of a row's choices.
struct StepMemory {
    int64_t num_rows, num_sequences, most_moves, num_groups, most_pages, page, num_kinds, num_choices;
    int64_t *tokens, *positions, *slots, *moves, *move_starts, *choices;
    int32_t *sequence_of, *lengths, *row_starts;
    uint8_t* visibility;
    int32_t* block_table;
};

// What a GPU needs to know of one sequence. pages: of its tokens. moves: [2, num_moves] the positions from which and to
// which cached tokens must still be copied.
struct PagedRows {
    TreeRows tree;
    int64_t num_pages, num_moves;
};

// How the tokens of some rows are chosen: `ChoiceOfRows` in lp/model/gpu/step_tensors.py.
struct RowChoices {
    int64_t kind, first, count;
    const int64_t* choices;
};

inline int64_t slot_of(const int64_t* pages, int64_t position, int64_t page) {
    return pages[position / page] * page + position % page;
}

// Writes how tokens are chosen; all is 0 for rows whose tokens are not chosen so.
inline void lay_choices(const StepMemory& to, const RowChoices* given, int64_t count) {
    const int64_t of_kind = to.num_rows * to.num_choices;
    std::memset(to.choices, 0, sizeof(int64_t) * to.num_kinds * of_kind);
    for (const RowChoices* one = given; one != given + count; ++one) {
        int64_t* first = to.choices + one->kind * of_kind + one->first * to.num_choices;
        std::copy_n(one->choices, one->count * to.num_choices, first);
    }
}

// Writes the moves of all sequences, each into one of the groups, which are about alike: `group_moves` in
// lp/kv_cache/moves.py. Returns how many there are.
inline int64_t lay_moves(const StepMemory& to, const PagedRows* given, int64_t count, const int64_t* pages,
                      const int64_t* moves) {
    int64_t done = 0, total = 0;
    for (int64_t n = 0; n < count; ++n) total += given[n].num_moves;
    std::memset(to.moves, 0, sizeof(int64_t) * 2 * to.most_moves);
    to.move_starts[0] = 0;
    int64_t group = 1;
    const double step = double(total) / double(to.num_groups);
    for (int64_t n = 0; n < count; ++n) {
        const int64_t own = given[n].num_moves;
        for (int64_t at = 0; at < own; ++at)
            for (int64_t side = 0; side < 2; ++side)
                to.moves[side * to.most_moves + done + at] = slot_of(pages, moves[side * own + at], to.page);
        // A group ends with the first sequence that reaches its share of all moves.
        for (done += own; group < to.num_groups && double(done) >= double(group) * step && total; ++group)
            to.move_starts[group] = done;
        pages += given[n].num_pages;
        moves += 2 * own;
    }
    for (; group <= to.num_groups; ++group) to.move_starts[group] = total;
    return total;
}

// Writes a tree's rows, of which the first is row `first` of the step, and its sequence's pages.
inline void lay_sequence(const StepMemory& to, const PagedRows& given, int64_t number, int64_t first,
                         const int64_t* pages) {
    const TreeRows& tree = given.tree;
    to.lengths[number] = int32_t(tree.cached);
    to.row_starts[number] = int32_t(first);
    const int64_t num_pages = std::min(given.num_pages, to.most_pages);
    for (int64_t at = 0; at < num_pages; ++at) to.block_table[number * to.most_pages + at] = int32_t(pages[at]);
    for (int64_t own = 0, row = first; own < tree.num_rows; ++own, ++row) {
        to.tokens[row] = tree.tokens[own];
        to.positions[row] = tree.cached + tree.depths[own];
        to.slots[row] = slot_of(pages, tree.cached + own, to.page);
        to.sequence_of[row] = int32_t(number);
        uint8_t* seen = to.visibility + row * to.num_rows + first;
        if (own) std::memcpy(seen, to.visibility + (first + tree.parents[own]) * to.num_rows + first, own);
        seen[own] = 1;
    }
}

// Makes all rows from the first on padding, which sees itself alone. count: sequences that have been laid out.
inline void pad(const StepMemory& to, int64_t first, int64_t count) {
    for (int64_t row = first; row < to.num_rows; ++row) {
        to.tokens[row] = to.positions[row] = 0;
        to.slots[row] = row - first;
        to.sequence_of[row] = int32_t(std::max<int64_t>(0, count - 1));
        to.visibility[row * to.num_rows + row] = 1;
    }
    for (int64_t number = std::max<int64_t>(1, count); number <= to.num_sequences; ++number)
        to.row_starts[number] = int32_t(to.num_rows);
    for (int64_t number = count; number < to.num_sequences; ++number) to.lengths[number] = 0;
}

// StepBuffer.fill. given: `count` PagedRows, then `num_pages` pages of all of these sequences, one sequence's behind the
// other's, then their moves, for which there must be room, then `num_chosen` RowChoices.
inline void fill(const StepMemory& to, const PagedRows* given, int64_t count, int64_t num_pages, int64_t num_chosen) {
    const int64_t *pages = reinterpret_cast<const int64_t*>(given + count), *moves = pages + num_pages;
    const int64_t num_moves = lay_moves(to, given, count, pages, moves);
    lay_choices(to, reinterpret_cast<const RowChoices*>(moves + 2 * num_moves), num_chosen);
    std::memset(to.visibility, 0, to.num_rows * to.num_rows);
    int64_t row = 0;
    for (int64_t number = 0; number < count; ++number) {
        lay_sequence(to, given[number], number, row, pages);
        row += given[number].tree.num_rows;
        pages += given[number].num_pages;
    }
    pad(to, row, count);
}

// What the native forward needs to know of one sequence. stores: addresses of its layers' keys, then of their values.
struct StoredRows {
    TreeRows tree;
    int64_t num_answered, capacity;
    const int64_t* stores;
};

// Lays sequences out as the native forward reads them (lp/model/cpu/kernels/step.h): numbers of each [B, 6], the
// tokens of all rows, then their parents and depths [3, R], and the addresses of all stores [B, num_stores]. Returns how
// many rows all rows see, each itself and its ancestors.
inline int64_t gather(const StoredRows* given, int64_t count, int64_t num_rows, int64_t num_stores, int64_t* numbers,
                      int64_t* inputs, int64_t* stores) {
    int64_t num_seen = num_rows;
    for (int64_t n = 0; n < count; ++n, numbers += 6, stores += num_stores) {
        const TreeRows& tree = given[n].tree;
        const int64_t table[] = {tree.num_rows, given[n].num_answered, tree.cached, given[n].capacity, 0, 0};
        std::copy_n(table, 6, numbers);
        std::copy_n(given[n].stores, num_stores, stores);
        std::copy_n(tree.tokens, tree.num_rows, inputs);
        std::copy_n(tree.parents, tree.num_rows, inputs + num_rows);
        std::copy_n(tree.depths, tree.num_rows, inputs + 2 * num_rows);
        inputs += tree.num_rows;
        for (int64_t row = 0; row < tree.num_rows; ++row) num_seen += tree.depths[row];
    }
    return num_seen;
}
