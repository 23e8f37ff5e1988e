// What follows from the parents of a tree's rows: paths, visibility, the acceptance walk (lp/tree.py).
//
// R rows of a tree; row 0 is the first, and parents come before their children
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

struct Tree {
    const int64_t* tokens;   // [R]
    const int64_t* parents;  // [R]
    int64_t num_rows;
};

// The children of each row, ascending.
class Children {
public:
    explicit Children(const Tree& tree) : first_(tree.num_rows, -1), next_(tree.num_rows, -1) {
        for (int64_t row = tree.num_rows - 1; row > 0; --row) {
            next_[row] = first_[tree.parents[row]];
            first_[tree.parents[row]] = row;
        }
    }
    template <class Use>
    void each(int64_t row, Use use) const {
        for (int64_t child = first_[row]; child >= 0; child = next_[child]) use(child);
    }

private:
    std::vector<int64_t> first_, next_;
};

// The rows of each level that a walk down a tree has reached, level after level.
struct Levels {
    std::vector<int64_t> rows, sizes;

    void clear() {
        rows.clear();
        sizes.clear();
    }
    int64_t count() const { return int64_t(sizes.size()); }
};

// `descend` in lp/tree.py. wanted(level, row) tells the token wanted at a level, and is_wanted whether there is one.
template <class Wanted>
void descend(const Tree& tree, const Children& children, std::vector<int64_t> candidates, Wanted wanted, Levels& levels) {
    int64_t row = 0;
    while (!candidates.empty()) {
        int64_t token;
        if (!wanted(levels.count(), row, token)) return;
        const size_t before = levels.rows.size();
        for (const int64_t candidate : candidates)
            if (tree.tokens[candidate] == token) levels.rows.push_back(candidate);
        if (levels.rows.size() == before) return;
        levels.sizes.push_back(int64_t(levels.rows.size() - before));
        row = levels.rows[before];
        candidates.clear();
        for (size_t at = before; at < levels.rows.size(); ++at)
            children.each(levels.rows[at], [&](int64_t child) { candidates.push_back(child); });
    }
}

// `verify` in lp/tree.py: the levels below the root whose tokens are the targets [R] of the rows above them.
inline void verify(const Tree& tree, const int64_t* targets, int64_t num_verified, Levels& levels) {
    levels.clear();
    const Children children(tree);
    std::vector<int64_t> first;
    children.each(0, [&](int64_t child) {
        if (child < num_verified) first.push_back(child);
    });
    descend(tree, children, std::move(first), [&](int64_t, int64_t row, int64_t& token) {
        token = targets[row];
        return true;
    }, levels);
}

// The path from the first row to the deepest row that agrees with the tokens, into `path`. Returns its length.
inline int64_t follow(const Tree& tree, const int64_t* tokens, int64_t count, int64_t* path) {
    if (!tree.num_rows) return 0;
    Levels levels;
    descend(tree, Children(tree), {0}, [&](int64_t level, int64_t, int64_t& token) {
        if (level < count) token = tokens[level];
        return level < count;
    }, levels);
    if (!levels.count()) return 0;
    int64_t row = levels.rows[levels.rows.size() - levels.sizes.back()];
    for (int64_t at = levels.count() - 1; at >= 0; --at, row = tree.parents[row]) path[at] = row;
    return levels.count();
}

// How many of the tokens that follow the first row are guessed by rows of a part, level by level.
inline int64_t follow_part(const Tree& tree, const int64_t* tokens, int64_t count, const std::vector<bool>& is_in) {
    Levels levels;
    const Children children(tree);
    std::vector<int64_t> first;
    children.each(0, [&](int64_t child) { first.push_back(child); });
    descend(tree, children, std::move(first), [&](int64_t level, int64_t, int64_t& token) {
        if (level < count) token = tokens[level];
        return level < count;
    }, levels);
    int64_t found = 0;
    auto row = levels.rows.begin();
    for (const int64_t size : levels.sizes) {
        found += std::any_of(row, row + size, [&](int64_t one) { return is_in[one]; });
        row += size;
    }
    return found;
}

// The ancestor closure [R, R], as bytes.
inline void visibility(const int64_t* parents, int64_t num_rows, uint8_t* seen) {
    std::memset(seen, 0, num_rows * num_rows);
    for (int64_t row = 0; row < num_rows; ++row) {
        if (row) std::memcpy(seen + row * num_rows, seen + parents[row] * num_rows, row);
        seen[row * num_rows + row] = 1;
    }
}
