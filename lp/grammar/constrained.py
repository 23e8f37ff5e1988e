"""Decoding under a grammar: drafts that break it are dropped before the forward, tokens that must follow are drafts.

It changes no token: a draft counts only if the model answers it, and the model's answers are masked (lp/sampling/).
What the decoder within it plans hangs at the end of the tokens that are sure to follow.

    R rows of the tree, F tokens that are sure to follow, T rows of the tree of the decoder within
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Sequence

import numpy as np

from lp.decoder import MOST_FORCED, AheadOf, Decoder, Described, ProposedDrafts
from lp.grammar.state import GrammarState
from lp.tree import DEAD_END, Accepted, Answers, CountDrafts, Drafted, TokenTree, greatest_depth, no_drafts, verify

# Most rows of the tokens that are sure to follow, and of those that must follow the drafts.
MOST_BELOW = 16
MOST_SURE = MOST_FORCED - MOST_BELOW
# The probability that a model answers a token that is sure to follow: it may take others for the same text.
ODDS = 0.95


class ConstrainedDecoder(Decoder):
    """Has another decoder draft. Its trees are [the sure tokens, the other's tree, what must follow its drafts]."""

    def __init__(self, inner: Decoder, state: GrammarState):
        """state: of the sequence; what adds tokens to the sequence pushes them."""
        self.inner, self._state = inner, state
        self._sure: list[int] = []
        self._planned: TokenTree  # the inner decoder's
        self._max_depth = 0

    @property
    def num_candidates(self) -> int:
        return self.inner.num_candidates

    @property
    def expected(self) -> float:
        return self.inner.expected + ODDS * len(self._sure)

    def plan(self, tokens: Sequence[int], room: int, wanted: int) -> TokenTree:
        after = self._begin(tokens, room, wanted)
        num_sure = len(self._sure)
        return self._compose(self.inner.plan(after, room - num_sure, wanted - num_sure), tokens[-1])

    def propose(self, tokens: Sequence[int], room: int, wanted: int, load: int) -> ProposedDrafts:
        self._root = tokens[-1]
        after = self._begin(tokens, room, wanted)
        num_sure = len(self._sure)
        proposed = self.inner.propose(after, room - num_sure, wanted - num_sure, load)
        return ProposedDrafts(proposed.num_rows + num_sure, proposed.odds)

    def build_tree(self, num_drafts: int) -> TokenTree:
        return self._compose(self.inner.build_tree(num_drafts), self._root)

    def _begin(self, tokens: Sequence[int], room: int, wanted: int) -> Sequence[int]:
        """Finds what is sure to follow. Returns the sequence with it."""
        self._max_depth = greatest_depth(room, wanted)
        self._sure = self._state.sure(min(MOST_SURE, self._max_depth))
        if not self._sure:
            return tokens
        self.inner.follow(tokens, self._sure)
        return [*tokens, *self._sure]

    def _compose(self, planned: TokenTree, root: int) -> TokenTree:
        """The tree of this step. planned: the inner decoder's. root: the last token of the sequence."""
        num_sure, num_drafts = len(self._sure), self.inner.num_drafts
        legal = self._state.legal(self._sure, planned, num_drafts, self._max_depth - num_sure)
        places = dict(zip(legal.rows, range(len(legal.rows)), strict=True))
        if len(legal.rows) <= num_drafts:
            planned = self.inner.keep(legal.rows)
        self._planned = planned
        tree = planned.under([root, *self._sure[:-1]]) if num_sure else planned
        ends = [(num_sure + places[row], chain) for row, chain in legal.ends]
        self.tree = _extend(tree, ends, MOST_BELOW)
        return self.tree

    def commit(self, tokens: Sequence[int], answers: Answers) -> tuple[Accepted, CountDrafts]:
        has_dead_ends = bool((answers.targets == DEAD_END).any())  # which nobody learns from: they are no tokens
        if self.tree is self._planned and not has_dead_ends:
            return self.inner.commit(tokens, answers)
        accepted = verify(self.tree, answers.targets)
        num_sure, count = len(self._sure), no_drafts
        if not has_dead_ends and num_sure < len(accepted.rows) and accepted.rows[num_sure] == num_sure:
            after = [*tokens, *self._sure]
            own = slice(num_sure, num_sure + len(self._planned))
            found, count = self.inner.commit(after, answers.part(own))
            if more := accepted.tokens[num_sure + len(found.tokens) :]:
                self.inner.follow([*after, *found.tokens], more)
        elif known := [token for token in accepted.tokens if token >= 0]:
            # Otherwise the model has taken other tokens for the same text.
            self.inner.follow(tokens, known)
        return accepted, self._counting(accepted, count)

    def _counting(self, accepted: Accepted, count: CountDrafts) -> CountDrafts:
        """Counts the inner decoder's drafts and those of the grammar."""
        num_sure, num_inner = len(self._sure), len(self._planned)
        num_added = len(self.tree) - num_inner

        def counted() -> Drafted:
            inner = count()
            right = iter(inner.accepted)
            sources = [
                "grammar" if row <= num_sure or row >= num_sure + num_inner else next(right, "window")
                for row in accepted.rows[1:]
            ]
            return Drafted(inner.proposed + Counter(grammar=num_added), sources, inner.is_covered)

        return counted

    def follow(self, tokens: Sequence[int], more: Sequence[int]) -> None:
        self.inner.follow(tokens, more)

    def ahead_of(self, tokens: Sequence[int]) -> AheadOf | None:
        return self.inner.ahead_of([*tokens, *self._sure])

    def describe(self) -> Described:
        inner = self.inner.describe()
        names = ["root", *["grammar"] * len(self._sure), *inner.sources[1:]]
        ends = [end._replace(row=end.row + len(self._sure)) for end in inner.drafted_for]
        return inner._replace(sources=names + ["grammar"] * (len(self.tree) - len(names)), drafted_for=ends)

    def fingerprint(self) -> int:
        return zlib.crc32(repr((self._sure, self.inner.fingerprint())).encode()) >> 1


def _extend(tree: TokenTree, ends: list[tuple[int, list[int]]], most: int) -> TokenTree:
    """The tree with chains of tokens below some rows, the first ones first, of at most so many rows."""
    tokens, parents, depths = list[int](), list[int](), list[int]()
    num_rows, all_depths = len(tree), tree.depths
    for row, chain in ends:
        depth = int(all_depths[row])
        for at, token in enumerate(chain[: most - len(tokens)]):
            parents.append(num_rows + len(tokens) - 1 if at else row)
            tokens.append(token)
            depths.append(depth + 1 + at)
    if not tokens:
        return tree
    greedy = None if tree.greedy is None else np.concatenate([tree.greedy, np.zeros(len(tokens), bool)])
    return TokenTree(
        np.concatenate([tree.tokens, np.array(tokens)]),
        np.concatenate([tree.parents, np.array(parents)]),
        np.concatenate([all_depths, np.array(depths)]),
        greedy,
    )
