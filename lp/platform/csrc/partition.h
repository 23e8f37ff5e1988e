// Splits a tree into parts: parallel/runners/partition.py.
//
// R rows of a tree, P parts
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "tree.h"

// A leaf in depth-first order: its row, how many rows it adds to a part with the leaf before it, and to one without.
struct Leaf {
    int64_t row, added, alone;
};

inline std::vector<Leaf> leaves_of(const Tree& tree, const int64_t* depths) {
    const Children children(tree);
    std::vector<Leaf> leaves;
    std::vector<int64_t> stack{0};
    for (int64_t fresh = 0; !stack.empty();) {
        const int64_t row = stack.back();
        stack.pop_back();
        ++fresh;
        const size_t before = stack.size();
        children.each(row, [&](int64_t child) { stack.push_back(child); });
        if (stack.size() > before) continue;
        leaves.push_back({row, fresh, depths[row] + 1});
        fresh = 0;
    }
    return leaves;
}

// The leaves of a part: those from the first up to the last one.
struct Run {
    size_t first, last;
};

// Fills part after part with leaves, each up to its capacity in rows. Returns whether the parts can take all leaves.
inline bool fill_parts(const std::vector<Leaf>& leaves, const std::vector<int64_t>& capacities, std::vector<Run>& runs) {
    runs.assign(capacities.size(), {0, 0});
    const int64_t num_parts = int64_t(capacities.size());
    int64_t part = -1, size = 0;
    for (size_t at = 0; at < leaves.size(); ++at) {
        size += leaves[at].added;
        if (part < 0 || size > capacities[part]) {
            do ++part;
            while (part < num_parts && leaves[at].alone > capacities[part]);
            if (part == num_parts) return false;
            size = leaves[at].alone;
            runs[part].first = at;
        }
        runs[part].last = at + 1;
    }
    return true;
}

// For each part its rows, ascending. trunks [P]: rows that each part has besides. Each part has the first row.
inline std::vector<std::vector<int64_t>> split(const Tree& tree, const int64_t* depths,
                                               const std::vector<int64_t>& trunks) {
    const std::vector<Leaf> leaves = leaves_of(tree, depths);
    const int64_t num_parts = int64_t(trunks.size());
    int64_t smallest = (tree.num_rows + num_parts - 1) / num_parts;
    int64_t largest = tree.num_rows + *std::max_element(trunks.begin(), trunks.end());
    std::vector<Run> runs;
    std::vector<int64_t> capacities(trunks.size());
    const auto fits = [&](int64_t most) {
        for (size_t part = 0; part < trunks.size(); ++part) capacities[part] = most - trunks[part];
        return fill_parts(leaves, capacities, runs);
    };
    while (smallest < largest) {
        const int64_t most = (smallest + largest) / 2;
        if (fits(most))
            largest = most;
        else
            smallest = most + 1;
    }
    fits(largest);
    std::vector<std::vector<int64_t>> parts(trunks.size());
    for (size_t part = 0; part < trunks.size(); ++part) {
        std::vector<bool> is_in(tree.num_rows);
        is_in[0] = true;
        for (size_t at = runs[part].first; at < runs[part].last; ++at)
            for (int64_t row = leaves[at].row; !is_in[row]; row = tree.parents[row]) is_in[row] = true;
        for (int64_t row = 0; row < tree.num_rows; ++row)
            if (is_in[row]) parts[part].push_back(row);
    }
    return parts;
}
