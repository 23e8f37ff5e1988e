"""Splits token trees into parts for replicas. Parts are closed under ancestors and cover all rows, and the replica with
the most work has as little of it as possible. A tree that is not worth sharing goes to one replica.

Leaves are taken in depth-first order, so that neighbours share most of their paths. Each replica gets a run of
consecutive leaves. A bisection finds the runs for which the largest work is smallest. A late column of the window has a
long path, so its replica gets fewer other leaves.
"""

from __future__ import annotations

from collections.abc import Sequence

from lp.tree import TokenTree, chain, descend


class TreePartitioner:
    """Splits the trees of one sequence, step after step, or gives all of a tree to one replica while the others rest.

    A replica lacks the accepted tokens that others have computed. It computes them in the next step in which it takes
    part, as a trunk above the tree, and gets a smaller part of that tree.
    """

    def __init__(self, num_replicas: int):
        self.num_replicas = num_replicas
        self._tree = chain([])
        self._parts: list[set[int]] = []
        self._length = 0
        # How many of the sequence's first tokens each replica has computed.
        self._num_known = [0] * num_replicas

    def split(self, tree: TokenTree, tokens: Sequence[int], is_shared: bool = True) -> list[list[int]]:
        """The rows of each replica's part, ascending. tokens: the sequence, whose last token is the tree's root.

        If the tree is not shared, the replica that lacks the fewest tokens gets all rows, and the others none.
        """
        self._count_known(tokens)
        most = max(self._num_known)
        if is_shared:
            parts = partition(tree, self.num_replicas, [most - known for known in self._num_known])
        else:
            parts = [[] for _ in self._num_known]
            parts[self._num_known.index(most)] = list(range(len(tree)))
        self._tree, self._parts, self._length = tree, list(map(set, parts)), len(tokens)
        return parts

    @property
    def trunks(self) -> list[int]:
        """The number of tokens above the root of the last tree that each replica has not computed."""
        return [self._length - 1 - known for known in self._num_known]

    def _count_known(self, tokens: Sequence[int]) -> None:
        """Counts the tokens that each replica has computed, up to the last step. None counts before the first step."""
        num_before = len(tokens) - 1
        accepted = tokens[self._length : -1]
        first = self._tree.children[0] if self._parts else []
        levels = descend(self._tree, first, lambda depth, _: accepted[depth] if depth < len(accepted) else None)
        for replica, part in enumerate(self._parts):
            if part:
                self._num_known[replica] = self._length + sum(not part.isdisjoint(rows) for rows in levels)
        # The sequence may have been resumed with fewer tokens.
        self._num_known = [min(known, num_before) for known in self._num_known]


def partition(tree: TokenTree, num_parts: int, trunks: Sequence[int] = ()) -> list[list[int]]:
    """Splits a tree into `num_parts` ascending lists of rows. Each contains the root, and some nothing else.

    trunks: for each replica, the number of rows that it has to compute besides its part; () is none for all.
    """
    if num_parts == 1:
        return [list(range(len(tree)))]
    trunks = trunks or [0] * num_parts
    leaves, new_rows = _leaves(tree)
    depths = tree.depths.tolist()
    smallest, largest = -(-(len(tree) + sum(trunks)) // num_parts), len(tree) + max(trunks)
    while smallest < largest:
        most = (smallest + largest) // 2
        if _runs(leaves, new_rows, depths, [most - trunk for trunk in trunks]) is not None:
            largest = most
        else:
            smallest = most + 1
    runs = _runs(leaves, new_rows, depths, [largest - trunk for trunk in trunks])
    assert runs is not None
    return [_closure(tree, run) for run in runs]


def _leaves(tree: TokenTree) -> tuple[list[int], list[int]]:
    """Leaves in depth-first order, and the number of rows that each adds to a part with the leaf before it."""
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


def _runs(leaves: list[int], new_rows: list[int], depths: list[int], capacities: list[int]) -> list[list[int]] | None:
    """Fills part after part with leaves, each up to its capacity in rows. None if the parts cannot take all leaves."""
    runs: list[list[int]] = [[] for _ in capacities]
    part = size = 0
    for leaf, added in zip(leaves, new_rows, strict=True):
        if not runs[part] or size + added > capacities[part]:
            alone = depths[leaf] + 1
            first = part + bool(runs[part])
            part = next((later for later in range(first, len(runs)) if alone <= capacities[later]), -1)
            if part < 0:
                return None
            size = alone
        else:
            size += added
        runs[part].append(leaf)
    return runs


def _closure(tree: TokenTree, leaves: list[int]) -> list[int]:
    """The root, the leaves and all their ancestors, ascending."""
    return sorted({0}.union(*(tree.path(leaf) for leaf in leaves)))
