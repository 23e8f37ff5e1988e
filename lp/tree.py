"""The token tree, which is all rows that one decoding step computes; what a model answers for them; and verification.

A tree knows nothing of where its rows came from (window, drafts, trunk) or of which rank computes them. Verification
finds the rows that the answers confirm. Greedy decoding and sampling share it, as targets are deterministic in both
(docs/design.md, "Sampling").

    R rows of a tree; row 0 is the root, and parents come before their children
    K candidates of a row, T alternatives of a row with log-probabilities, H heads, G guesses of each
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from lp.platform.library import address, integers, library

# The parent of row 0, which follows the cached prefix.
PREFIX = -1
# The target of a row whose logits are NaN, and of one that no token may follow: a grammar allows nothing that the
# other settings allow.
NOT_A_TOKEN, DEAD_END = -1, -2


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


@dataclass(eq=False)
class TokenTree:
    """Rows of one step. Nothing writes to its arrays.

    tokens: [R] int64 token ids.
    parents: [R] int64 row of each parent, `PREFIX` for the first row; `parents[i] < i`.
    depths: [R] int64 distance from the first row, which has depth 0.
    greedy: [R] bool, rows answered as in greedy decoding even under sampling; None if there are none.
    scored: [R] int64, for each row the token whose log-probability is reported in the place of its target's; None for
    the targets.
    coupled: how targets depend on what was drafted; None if they do not, which makes them the same with any drafts.
    num_rows: R.
    accepted_path: the tokens and the rows of the path that was accepted, if they were noted.
    """

    tokens: np.ndarray
    parents: np.ndarray
    depths: np.ndarray
    greedy: np.ndarray | None = None
    scored: np.ndarray | None = None
    coupled: Coupled | None = None
    num_rows: int = field(init=False)
    accepted_path: tuple[list[int], list[int]] | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        self.num_rows = len(self.tokens)

    def __len__(self) -> int:
        return self.num_rows

    @cached_property
    def children(self) -> list[list[int]]:
        """[R] lists: the children of each row."""
        children: list[list[int]] = [[] for _ in range(len(self))]
        for row, parent in enumerate(self.parents.tolist()):
            if parent != PREFIX:
                children[parent].append(row)
        return children

    @cached_property
    def num_trunk(self) -> int:
        """How many of the first rows are a trunk: each is the parent of the next, and all later rows descend from them
        all. A chain is a trunk as a whole.
        """
        is_next = self.parents == np.arange(PREFIX, len(self) - 1)
        if is_next.all():
            return len(self)
        first = int(is_next.argmin())
        return min(first, 1 + int(self.parents[first:].min()))

    @cached_property
    def visibility(self) -> np.ndarray:
        """[R, R] bool, the ancestor closure: row i sees row j if j is i or an ancestor of i."""
        num_rows = len(self)
        if (native := library()) is not None:
            parents, visible = integers(self.parents), np.empty((num_rows, num_rows), dtype=bool)
            native.tree_visibility(address(parents), num_rows, address(visible))
            return visible
        num_bytes = -(-num_rows // 8)
        seen: list[int] = []  # bit j: row j is seen
        for row, parent in enumerate(self.parents.tolist()):
            seen.append(1 << row | seen[parent] if row else 1)
        packed = np.frombuffer(b"".join([bits.to_bytes(num_bytes, "little") for bits in seen]), dtype=np.uint8)
        bits = np.unpackbits(packed.reshape(num_rows, num_bytes), axis=1, count=num_rows, bitorder="little")
        return bits.view(bool)

    @cached_property
    def _integers(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The tokens, the parents and the depths as the library reads them."""
        return integers(self.tokens), integers(self.parents), integers(self.depths)

    @property
    def addresses(self) -> tuple[int, int, int]:
        """Where the library finds the tokens, the parents and the depths, int64 numbers each, while the tree lives."""
        tokens, parents, depths = self._integers
        return address(tokens), address(parents), address(depths)

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
        """The longest path of rows from the first one on whose tokens are the first of `tokens`."""
        if self.accepted_path is not None:
            known_tokens, rows = self.accepted_path
            if known_tokens[: len(tokens)] == tokens:
                return rows[: len(tokens)]
        if not tokens or not len(self):
            return []
        if len(self) == 1:
            return [0] if tokens[0] == self.tokens[0] else []
        if (native := library()) is not None:
            rows, parents, wanted = integers(self.tokens), integers(self.parents), integers(tokens)
            path = np.empty(len(wanted), np.int64)
            count = native.tree_follow(
                address(rows), address(parents), len(self), address(wanted), len(wanted), address(path)
            )
            return path[:count].tolist()
        levels = descend(self, [0], lambda depth, _: tokens[depth] if depth < len(tokens) else None)
        return self.path(levels[-1][0]) if levels else []

    def num_along(self, tokens: list[int], part: list[int]) -> int:
        """How many of the tokens that follow the first row, one below the other, are guessed by rows of a part."""
        if (native := library()) is not None:
            at_tokens, at_parents, _ = self.addresses
            return native.tree_follow_part(at_tokens, at_parents, len(self), tokens, part)
        levels = descend(self, self.children[0], lambda depth, _: tokens[depth] if depth < len(tokens) else None)
        return sum(not set(part).isdisjoint(level) for level in levels)

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


# Of all trees of one row.
_ROOT_PARENT, _ROOT_DEPTH = np.array([PREFIX]), np.array([0])
_AT_ROOT = address(_ROOT_PARENT), address(_ROOT_DEPTH)


class _OneRow(TokenTree):
    """The tree of a plain step, of which there are many, so its addresses cost little."""

    @property
    def addresses(self) -> tuple[int, int, int]:
        return address(self.tokens), *_AT_ROOT


def greatest_depth(room: int, wanted: int) -> int:
    """The greatest depth of a draft: the last token that is wanted needs none.

    room: positions that the model has after the root's. wanted: tokens that may still be emitted.
    """
    return max(0, min(room, wanted - 1))


def chain(tokens: Sequence[int], scored: np.ndarray | None = None) -> TokenTree:
    """A tree without branches, such as a chunk of a prompt. scored: see TokenTree."""
    num_rows = len(tokens)
    if num_rows == 1 and scored is None:
        return _OneRow(np.array(tokens, dtype=np.int64), _ROOT_PARENT, _ROOT_DEPTH)
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


class Ahead(NamedTuple):
    """What is asked of a model's heads for each row: H, how many of them, and G, how many tokens of each."""

    num_heads: int
    num_guesses: int

    @property
    def num_columns(self) -> int:
        """The number of columns that the guesses take in packed answers."""
        return 2 * self.num_heads * self.num_guesses


class Guesses(NamedTuple):
    """What heads guess for each row: head h, from 0, the token h + 1 places behind the row's target.

    tokens: int32 [R, H, G], the likeliest first. odds: float32 [R, H, G], their probabilities.
    """

    tokens: np.ndarray
    odds: np.ndarray


@dataclass(slots=True)
class Answers:
    """What the model answers for each row of a tree.

    targets: [R] integers, the token that follows the row's path, NOT_A_TOKEN or DEAD_END.
    candidates: [R, K] the K best tokens, best first; the first is the target. None if not asked for.
    logprobs: [R] float32 log-probability of the target under the unprocessed distribution. None if not asked for.
    top_tokens, top_logprobs: [R, T] the T likeliest tokens of the same distribution, best first. None if not asked for.
    guesses: of heads. None if not asked for.
    hidden: [R, D] float32 hidden states that the output embedding reads. None if not asked for.
    """

    targets: np.ndarray
    candidates: np.ndarray | None = None
    logprobs: np.ndarray | None = None
    top_tokens: np.ndarray | None = None
    top_logprobs: np.ndarray | None = None
    guesses: Guesses | None = None
    hidden: np.ndarray | None = None

    @staticmethod
    def none() -> Answers:
        """The answers to no rows."""
        return Answers(np.empty(0, np.int64))

    def part(self, rows: slice | list[int]) -> Answers:
        """The answers for some of the rows."""
        every = (self.targets, self.candidates, self.logprobs, self.top_tokens, self.top_logprobs)
        part = Answers(*(None if some is None else some[rows] for some in every))  # pyright: ignore[reportArgumentType]
        part.guesses = self.guesses and Guesses(self.guesses.tokens[rows], self.guesses.odds[rows])
        part.hidden = None if self.hidden is None else self.hidden[rows]
        return part

    def pack(self) -> np.ndarray:
        """All answers as int32 [R, C], floats by their bits: C = max(K, 1), plus 1 + 2T with log-probabilities, plus
        2HG with guesses, plus D with hidden states.
        """
        first = self.targets[:, None] if self.candidates is None else self.candidates
        if self.logprobs is None and self.guesses is None and self.hidden is None:
            return first.astype(np.int32, copy=False)
        columns = [first.astype(np.int32)]
        if self.logprobs is not None and self.top_tokens is not None and self.top_logprobs is not None:
            columns.append(self.logprobs.astype(np.float32)[:, None].view(np.int32))
            columns.append(self.top_tokens.astype(np.int32))
            columns.append(np.ascontiguousarray(self.top_logprobs, dtype=np.float32).view(np.int32))
        if self.guesses is not None:
            columns.append(self.guesses.tokens.reshape(len(first), -1).astype(np.int32))
            columns.append(self.guesses.odds.reshape(len(first), -1).astype(np.float32).view(np.int32))
        if self.hidden is not None:
            columns.append(np.ascontiguousarray(self.hidden, np.float32).view(np.int32))
        return np.concatenate(columns, axis=1)

    @staticmethod
    def unpack(packed: np.ndarray, num_candidates: int = 0, ahead: Ahead | None = None, num_hidden: int = 0) -> Answers:
        """The inverse of `pack`. num_candidates: K; 0 if candidates were not asked for. ahead: what was asked of heads;
        None for nothing. num_hidden: D; 0 if hidden states were not asked for.
        """
        if num_hidden:
            answers = Answers.unpack(packed[:, :-num_hidden], num_candidates, ahead)
            answers.hidden = np.ascontiguousarray(packed[:, -num_hidden:]).view(np.float32)
            return answers
        if ahead is not None:
            answers = Answers.unpack(packed[:, : -ahead.num_columns], num_candidates)
            both = packed[:, -ahead.num_columns :].reshape(len(packed), 2, ahead.num_heads, ahead.num_guesses)
            answers.guesses = Guesses(both[:, 0], np.ascontiguousarray(both[:, 1]).view(np.float32))
            return answers
        first, targets = max(1, num_candidates), packed[:, 0]
        if packed.shape[1] == first:
            return Answers(targets, packed if num_candidates else None)
        candidates = packed[:, :num_candidates] if num_candidates else None
        num_top = (packed.shape[1] - first - 1) // 2
        floats = np.ascontiguousarray(packed).view(np.float32)
        top_tokens = packed[:, first + 1 : first + 1 + num_top]
        return Answers(targets, candidates, floats[:, first], top_tokens, floats[:, first + 1 + num_top :])


class Accepted(NamedTuple):
    """What a step yields.

    tokens: at least one. The last is the bonus token: it was in no row of the tree.
    rows: for each token, the row whose target it is; the first is row 0, the root.
    drafted: for each token but the last, all rows that had guessed it.
    """

    tokens: list[int]
    rows: list[int]
    drafted: list[list[int]]


@dataclass
class Drafted:
    """The draft tokens of one step, by source.

    proposed: how many drafts each source proposed. accepted: the source of each accepted draft, in order. is_covered:
    whether the step's end is one that others drafted for while it was computed; None if nobody did.
    """

    proposed: Counter[str]
    accepted: list[str]
    is_covered: bool | None = None


# Counts a step's drafts when it is called, which can wait until the next step has been started.
CountDrafts = Callable[[], Drafted]


def count_drafts(sources: Sequence[str], kinds: Sequence[int], accepted: Accepted) -> Drafted:
    """Counts drafts by source. A window cell counts if it was accepted and no draft had the same path.

    sources: the source of each kind. kinds: of the root and each draft; the window's cells come after them.
    """
    numbers: list[int] = np.asarray(kinds).tolist()
    proposed = Counter(sources[kind] for kind in numbers[1:])
    right: list[str] = []
    for rows in accepted.drafted:
        row = next((row for row in rows if row < len(kinds)), None)
        if row is None:
            proposed["window"] += 1
        right.append("window" if row is None else sources[kinds[row]])
    return Drafted(proposed, right)


_NO_DRAFTS = Drafted(Counter(), [])


def no_drafts() -> Drafted:
    """Returns the count of a step without drafts."""
    return _NO_DRAFTS


def verify(tree: TokenTree, targets: np.ndarray, num_verified: int | None = None) -> Accepted:
    """Walks from the root to the child that holds the present row's target, as long as there is one.

    The targets of all rows on the way are accepted. num_verified: only this many first rows count as children of the
    root; None is all rows.
    """
    answers = targets.tolist()
    if len(answers) == 1:
        return Accepted(answers, [0], [])
    num_verified = len(tree) if num_verified is None else num_verified
    if (native := library()) is not None:
        tokens, parents, wanted, num_rows = integers(tree.tokens), integers(tree.parents), integers(targets), len(tree)
        found = np.empty((2, num_rows), np.int64)
        at = address(found)
        count = native.tree_verify(
            address(tokens), address(parents), num_rows, address(wanted), num_verified, at, at + 8 * num_rows
        )
        levels = _as_levels(found, count)
    else:
        first = [row for row in tree.children[0] if row < num_verified]
        levels = descend(tree, first, lambda _, row: answers[row])
    rows = [0, *(level[0] for level in levels)]
    return Accepted([answers[row] for row in rows], rows, levels)


def _as_levels(found: np.ndarray, count: int) -> list[list[int]]:
    """Lists of the rows of each level. found: [2, R] all of them, and the number of rows of each level."""
    sizes = found[1, :count].tolist()
    rows = found[0, : sum(sizes)].tolist()
    if len(rows) == count:
        return [[row] for row in rows]
    levels, first = [], 0
    for size in sizes:
        levels.append(rows[first : first + size])
        first += size
    return levels


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


def as_guesses(targets: np.ndarray) -> np.ndarray:
    """Targets as guesses for later steps: NOT_A_TOKEN and DEAD_END become token 0, as any token will do."""
    return np.maximum(targets, 0)
