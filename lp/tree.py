"""The token tree: all rows that one decoding step computes.

Knows nothing of where its rows came from (window, drafts, trunk) or of which rank computes them.

    R rows of a tree; row 0 is the root, and parents come before their children
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from lp.host import trees
from lp.host.library import library

# The parent of row 0, which follows the cached prefix.
PREFIX = -1


class Proposal(NamedTuple):
    """What was drafted after a row.

    tokens: of the row's children in the whole tree, in their order; a part of the tree may lack some. probabilities:
    tensor [V], the distribution from which they were drawn one after the other, without replacement, on the device of
    the draft; None if they were not drawn.
    """

    tokens: tuple[int, ...] = ()
    probabilities: Any = None


@dataclass(frozen=True, eq=False)
class Coupled:
    """How the targets of a tree's rows are coupled to what was drafted after them (see lp/sampling/couplings).

    rule: the name of the coupling. proposals: [R], one for each row. parameters: of the rule.
    """

    rule: str
    proposals: Sequence[Proposal]
    parameters: tuple[float, ...] = ()

    @staticmethod
    def of_children(tree: TokenTree, rule: str, parameters: tuple[float, ...] = ()) -> Coupled:
        """The coupling of a whole tree whose drafts were not drawn."""
        tokens = tree.tokens.tolist()
        proposals = [Proposal(tuple(tokens[child] for child in children)) for children in tree.children]
        return Coupled(rule, proposals, parameters)

    def take(self, rows: Sequence[int]) -> Coupled:
        return Coupled(self.rule, [self.proposals[row] for row in rows], self.parameters)


@dataclass(frozen=True, eq=False)
class TokenTree:
    """Rows of one step.

    tokens: [R] int64 token ids.
    parents: [R] int64 row of each parent, `PREFIX` for the first row; `parents[i] < i`.
    depths: [R] int64 distance from the first row, which has depth 0.
    greedy: [R] bool, rows answered as in greedy decoding even under sampling; None if there are none.
    scored: [R] int64, for each row the token whose log-probability is reported in the place of its target's; None for
    the targets.
    coupled: how targets depend on what was drafted; None if they do not, which makes them the same with any drafts.
    """

    tokens: np.ndarray
    parents: np.ndarray
    depths: np.ndarray
    greedy: np.ndarray | None = None
    scored: np.ndarray | None = None
    coupled: Coupled | None = None

    def __len__(self) -> int:
        return len(self.tokens)

    @cached_property
    def num_rows(self) -> int:
        """R. Once it is known, nothing of Python's is called for it, as between two steps every call counts."""
        return len(self)

    @cached_property
    def children(self) -> list[list[int]]:
        """[R] lists: the children of each row."""
        children: list[list[int]] = [[] for _ in range(len(self))]
        for row, parent in enumerate(self.parents.tolist()):
            if parent != PREFIX:
                children[parent].append(row)
        return children

    @cached_property
    def visibility(self) -> np.ndarray:
        """[R, R] bool, the ancestor closure: row i sees row j if j is i or an ancestor of i."""
        if (native := library()) is not None:
            return trees.visibility(native, self.parents)
        num_rows = len(self)
        num_bytes = -(-num_rows // 8)
        seen: list[int] = []  # bit j: row j is seen
        for row, parent in enumerate(self.parents.tolist()):
            seen.append(1 << row | seen[parent] if row else 1)
        packed = np.frombuffer(b"".join([bits.to_bytes(num_bytes, "little") for bits in seen]), dtype=np.uint8)
        bits = np.unpackbits(packed.reshape(num_rows, num_bytes), axis=1, count=num_rows, bitorder="little")
        return bits.view(bool)

    @cached_property
    def addresses(self) -> tuple[int, int, int]:
        """Where the library finds the tokens, the parents and the depths, int64 numbers each, while the tree lives."""
        kept = self.__dict__["_kept"] = [trees.integers(part) for part in (self.tokens, self.parents, self.depths)]
        return trees.address(kept[0]), trees.address(kept[1]), trees.address(kept[2])

    def path(self, row: int) -> list[int]:
        """Rows from the first row down to `row`, both included."""
        rows = [row]
        while (parent := int(self.parents[rows[-1]])) != PREFIX:
            rows.append(parent)
        return rows[::-1]

    def as_lists(self) -> tuple[list[int], list[int]]:
        """The tokens and the parents."""
        return self.tokens.tolist(), self.parents.tolist()

    def inputs(self, cached: int) -> np.ndarray:
        """[R, 2 + R] int64: each row's token and position, and which rows it sees. cached: length of the prefix."""
        return np.concatenate([self.tokens[:, None], self.depths[:, None] + cached, self.visibility], axis=1)

    def path_along(self, tokens: Sequence[int]) -> list[int]:
        """The longest path of rows from the first one on whose tokens are the first of `tokens`.

        It is known for the accepted path of a tree that has a `noted_path`: the tokens of its rows, and the rows.
        """
        known_tokens, rows = self.__dict__.get("noted_path", ((), ()))
        if known_tokens[: len(tokens)] == tokens:
            return rows[: len(tokens)]
        if not tokens or not len(self):
            return []
        if len(self) == 1:
            return [0] if tokens[0] == self.tokens[0] else []
        if (native := library()) is not None:
            return trees.follow(native, self.tokens, self.parents, tokens)
        levels = descend(self, [0], lambda depth, _: tokens[depth] if depth < len(tokens) else None)
        return self.path(levels[-1][0]) if levels else []

    def take(self, rows: Sequence[int]) -> TokenTree:
        """The sub-tree of ascending `rows`, which must contain all ancestors of each row."""
        index = np.asarray(rows)
        new_row = np.full(len(self) + 1, PREFIX)  # the last entry answers for PREFIX itself
        new_row[index] = np.arange(len(index))
        parents = new_row[self.parents[index]]
        assert (parents[1:] != PREFIX).all(), "a part of a tree must be closed under ancestors"
        greedy = None if self.greedy is None else self.greedy[index]
        scored = None if self.scored is None else self.scored[index]
        coupled = self.coupled and self.coupled.take(rows)
        return TokenTree(self.tokens[index], parents, self.depths[index], greedy, scored, coupled)

    def under(self, trunk: Sequence[int]) -> TokenTree:
        """This tree under a chain of the `trunk` tokens, which the sequence has and a cache lacks. No trunk row is
        greedy, and none is scored. It says nothing of a coupling, as a runner asks for answers by this tree.
        """
        if not trunk:
            return self
        num_trunk = len(trunk)
        return TokenTree(
            np.concatenate([np.asarray(trunk, dtype=np.int64), self.tokens]),
            np.concatenate([np.arange(-1, num_trunk - 1), self.parents + num_trunk]),
            np.concatenate([np.arange(num_trunk), self.depths + num_trunk]),
            None if self.greedy is None else np.concatenate([np.zeros(num_trunk, dtype=bool), self.greedy]),
        )


# Of all trees of one row; nothing writes to a tree.
_ROOT_PARENT, _ROOT_DEPTH = np.array([PREFIX]), np.array([0])
_AT_ROOT = trees.address(_ROOT_PARENT), trees.address(_ROOT_DEPTH)


def greatest_depth(room: int, wanted: int) -> int:
    """The greatest depth of a draft: the last token that is wanted needs none.

    room: positions that the model has after the root's. wanted: tokens that may still be emitted.
    """
    return max(0, min(room, wanted - 1))


def chain(tokens: Sequence[int], scored: np.ndarray | None = None) -> TokenTree:
    """A tree without branches, such as a chunk of a prompt. scored: see TokenTree."""
    num_rows = len(tokens)
    if num_rows == 1 and scored is None:
        tree = TokenTree(np.array(tokens, dtype=np.int64), _ROOT_PARENT, _ROOT_DEPTH)
        tree.__dict__["addresses"] = (trees.address(tree.tokens), *_AT_ROOT)
        return tree
    parents, depths = np.arange(-1, num_rows - 1), np.arange(num_rows)
    return TokenTree(np.asarray(tokens, dtype=np.int64), parents, depths, scored=scored)


NO_ROWS = chain([])


class TreeBuilder:
    """Collects rows under a root."""

    def __init__(self, root: int):
        self.tokens = [root]
        self.parents = [PREFIX]
        self.depths = [0]

    def add(self, token: int, parent: int) -> int:
        """Adds a row and returns its number."""
        self.tokens.append(token)
        self.parents.append(parent)
        self.depths.append(self.depths[parent] + 1)
        return len(self.tokens) - 1

    def extend(self, tokens: Sequence[int], parents: Sequence[int], depths: Sequence[int]) -> range:
        """Adds rows whose parents and depths are known and returns their numbers."""
        first = len(self.tokens)
        self.tokens += tokens
        self.parents += parents
        self.depths += depths
        return range(first, len(self.tokens))

    def build(self, greedy_from: int | None = None) -> TokenTree:
        """greedy_from: all rows from this one on are greedy (see TokenTree); None is none."""
        tokens, parents, depths = np.array(self.tokens), np.array(self.parents), np.array(self.depths)
        return TokenTree(
            tokens, parents, depths, None if greedy_from is None else np.arange(len(tokens)) >= greedy_from
        )


def descend(tree: TokenTree, start: Iterable[int], next_token: Callable[[int, int], int | None]) -> list[list[int]]:
    """Walks down the tree from the rows `start` as long as its tokens agree with `next_token`.

    next_token(level, row): the token wanted at a level (from 0), where `row` is a row of the level before (0 at first);
    None stops. Rows with the same path of tokens, such as a window cell and a draft, are followed together. Returns
    for every level reached the rows that agree.
    """
    levels: list[list[int]] = []
    tokens, children, candidates = tree.tokens.tolist(), tree.children, list(start)
    row = 0
    while candidates:
        wanted = next_token(len(levels), row)
        matching = [candidate for candidate in candidates if tokens[candidate] == wanted]
        if not matching:
            break
        levels.append(matching)
        row = matching[0]
        candidates = [child for match in matching for child in children[match]]
    return levels
