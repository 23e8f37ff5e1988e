"""Splits a token tree into parts for ranks: closed under ancestors, covering all rows, the largest as small as can be.

Leaves are taken in depth-first order, so that neighbours share most of their path, and each rank gets a run of them.
Which runs make the largest part smallest is found by bisection; a later window column, whose path is longer, so costs
its rank more and gets fewer neighbours.
"""

from __future__ import annotations

from lp.tree import TokenTree


def partition(tree: TokenTree, num_parts: int) -> list[list[int]]:
    """`num_parts` ascending lists of rows. Each holds the root; a rank with nothing else to do computes it alone."""
    if num_parts == 1:
        return [list(range(len(tree)))]
    leaves, new_rows = _leaves(tree)
    depths = tree.depths.tolist()
    smallest, largest = -(-len(tree) // num_parts), len(tree)
    while smallest < largest:
        capacity = (smallest + largest) // 2
        if (runs := _runs(leaves, new_rows, depths, capacity)) is not None and len(runs) <= num_parts:
            largest = capacity
        else:
            smallest = capacity + 1
    runs = _runs(leaves, new_rows, depths, largest)
    assert runs is not None and len(runs) <= num_parts
    parts = [_closure(tree, run) for run in runs]
    return parts + [[0]] * (num_parts - len(parts))


def _leaves(tree: TokenTree) -> tuple[list[int], list[int]]:
    """Leaves in depth-first order, and how many rows each adds to a part that holds the leaf before it."""
    leaves, new_rows = [], []
    stack = [0]
    fresh = 0
    while stack:
        row = stack.pop()
        fresh += 1
        stack.extend(tree.children[row])
        if not tree.children[row]:
            leaves.append(row)
            new_rows.append(fresh)
            fresh = 0
    return leaves, new_rows


def _runs(leaves: list[int], new_rows: list[int], depths: list[int], capacity: int) -> list[list[int]] | None:
    """Fills part after part up to `capacity` rows; None if a single path does not fit."""
    runs: list[list[int]] = []
    size = 0
    for leaf, added in zip(leaves, new_rows, strict=True):
        if runs and size + added <= capacity:
            runs[-1].append(leaf)
            size += added
        else:
            runs.append([leaf])
            size = depths[leaf] + 1
            if size > capacity:
                return None
    return runs


def _closure(tree: TokenTree, leaves: list[int]) -> list[int]:
    return sorted({row for leaf in leaves for row in tree.path(leaf)})
