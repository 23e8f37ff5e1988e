"""How replicas share the trees of one sequence."""

from __future__ import annotations

from collections.abc import Sequence

from lp.tree import TokenTree
from parallel.runners.copy_cost import NO_COPIES, CopyCost
from parallel.runners.partition import partition
from parallel.runners.shares import KnownTokens, Shares


def share_tree(
    tree: TokenTree, numbers: Sequence[int], is_shared: bool = True, copy_cost: CopyCost = NO_COPIES
) -> Shares:
    """Splits a tree among all replicas; those that lack more tokens than others get a smaller part.

    numbers: how many of the sequence's first tokens each replica has computed. If the tree is not shared, the replica
    that lacks the fewest tokens gets all rows.
    """
    most = max(numbers)
    if not is_shared:
        return Shares({numbers.index(most): range(len(tree))})
    parts = partition(tree, len(numbers), copy_cost.lags(most, numbers))
    return Shares(dict(enumerate(parts)))


class TreePartitioner:
    """Splits the trees of one sequence, step after step, or gives all of a tree to one replica while the others rest.

    A replica lacks the accepted tokens that others have computed. It computes them in the next step in which it takes
    part, as a trunk above the tree, and gets a smaller part of that tree.
    """

    def __init__(self, num_replicas: int):
        self._known = KnownTokens(num_replicas)
        self._length = 0

    def split(self, tree: TokenTree, tokens: Sequence[int], is_shared: bool = True) -> list[list[int]]:
        """The rows of each replica's part, ascending; see `share_tree`. tokens: the sequence; the last is the root."""
        shares = share_tree(tree, self._known.count(tokens), is_shared)
        self._known.note(tree, len(tokens), shares)
        self._length = len(tokens)
        return [list(shares.rows.get(replica, ())) for replica in range(len(self._known.numbers))]

    @property
    def trunks(self) -> list[int]:
        """The number of tokens above the root of the last tree that each replica has not computed."""
        return [self._length - 1 - number for number in self._known.numbers]
