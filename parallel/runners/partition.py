"""Splits token trees into parts for replicas. Parts are closed under ancestors and cover all rows, and the replica with
the most work has as little of it as possible.

Leaves are taken in depth-first order, so that neighbours share most of their paths. Each replica gets a run of
consecutive leaves. A bisection finds the runs for which the largest work is smallest. A late column of the window has a
long path, so its replica gets fewer other leaves.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from lp.platform.library import library
from lp.tree import TokenTree


class Leaves(NamedTuple):
    """The leaves of a tree in depth-first order.

    rows: the leaves. added: the number of rows that each adds to a part with the leaf before it. alone: the number of
    rows of each one's path, which it adds to a part without that leaf.
    """

    rows: list[int]
    added: list[int]
    alone: list[int]


class Run(NamedTuple):
    """Consecutive leaves and the number of rows on their paths."""

    leaves: list[int]
    num_rows: int


def partition(tree: TokenTree, num_parts: int, trunks: Sequence[int] = ()) -> list[list[int]]:
    """Splits a tree into `num_parts` ascending lists of rows. Each contains the root, and some nothing else.

    trunks: for each replica, the number of rows that it has to compute besides its part; () is none for all.
    """
    if num_parts == 1:
        return [list(range(len(tree)))]
    trunks = list(trunks) or [0] * num_parts
    if (native := library()) is not None:
        _, parents, depths = tree.addresses
        return native.tree_split(parents, depths, len(tree), trunks)
    leaves = leaves_of(tree)
    smallest, largest = -(-len(tree) // num_parts), len(tree) + max(trunks)
    while smallest < largest:
        most = (smallest + largest) // 2
        if runs(leaves, [most - trunk for trunk in trunks]) is not None:
            largest = most
        else:
            smallest = most + 1
    found = runs(leaves, [largest - trunk for trunk in trunks])
    assert found is not None
    return [closure(tree, run.leaves) for run in found]


def leaves_of(tree: TokenTree) -> Leaves:
    """The leaves of a tree that is not empty."""
    depths, children = tree.depths.tolist(), tree.children
    leaves = Leaves([], [], [])
    stack = [0]
    fresh = 0
    while stack:
        row = stack.pop()
        fresh += 1
        stack.extend(children[row])
        if not children[row]:
            leaves.rows.append(row)
            leaves.added.append(fresh)
            leaves.alone.append(depths[row] + 1)
            fresh = 0
    return leaves


def runs(leaves: Leaves, capacities: Sequence[int]) -> list[Run] | None:
    """Fills part after part with leaves, each up to its capacity in rows. None if the parts cannot take all leaves."""
    found = [Run([], 0) for _ in capacities]
    part, taken, size = -1, [], 0
    for leaf, added, alone in zip(*leaves, strict=True):
        if part < 0 or size + added > capacities[part]:
            part = next((later for later in range(part + 1, len(capacities)) if alone <= capacities[later]), -1)
            if part < 0:
                return None
            taken, size = [], alone
        else:
            size += added
        taken.append(leaf)
        found[part] = Run(taken, size)
    return found


def closure(tree: TokenTree, leaves: Sequence[int]) -> list[int]:
    """The root, the leaves and all their ancestors, ascending."""
    parents = tree.parents
    rows = {0}
    for row in leaves:
        while row not in rows:
            rows.add(row)
            row = int(parents[row])
    return sorted(rows)
