"""Drafts from the model's heads (Medusa, arXiv 2401.10774, section 2.1).

With each row's answer come the heads' guesses of what follows the answer. Those of the last accepted row become the
tree of the next step, so the first step of a text has none.

    R rows of a tree, H heads, G guesses of each
"""

from __future__ import annotations

import heapq
import math
import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

import numpy as np

from lp.decoder import Decoder, Described, ProposedDrafts
from lp.request import AnswerSpec, DecodingContext, DecodingMethod, ModelTraits, Request, RowBounds
from lp.tree import (
    PREFIX,
    Accepted,
    Ahead,
    Answers,
    CountDrafts,
    Coupled,
    Drafted,
    TokenTree,
    chain,
    greatest_depth,
    no_drafts,
    verify,
)

SOURCE = "heads"
EXACT, TYPICAL = "exact", "typical"


@dataclass
class Medusa(DecodingMethod):
    """Drafts from the heads that model.heads names (Medusa, arXiv 2401.10774); lossy with verify=typical.

    max_rows: the most rows of a step; the tree's are the likeliest by the heads' probabilities. candidates: the best
    tokens taken from each head. verify: "exact" accepts a draft if it is the model's own token; "typical" is lossy:
    when sampling it also accepts a draft that the model finds likely enough (section 2.3.1 of the paper), so the text
    is not distributed as the model's. exact: demands the model's own text; verify=typical needs exact=false. epsilon,
    delta: the lossy verify=typical accepts a draft if its probability is above min(epsilon, delta * exp(-entropy)).
    """

    method: ClassVar[str] = "medusa"
    needs_engine: ClassVar[bool] = True
    max_rows: int = 16
    candidates: int = 6
    verify: str = EXACT
    exact: bool = True
    epsilon: float = 0.09
    delta: float = 0.3

    def check_values(self) -> None:
        if self.verify not in (EXACT, TYPICAL):
            raise ValueError(f"decode.verify={self.verify} must be {EXACT}, or {TYPICAL}, which is lossy")
        if self.verify == TYPICAL and self.exact:
            raise ValueError(
                "decode.verify=typical is lossy: it gives other text than the model, but decode.exact=true demands the "
                "model's own; set decode.exact=false, or decode.verify=exact"
            )
        for name in ("epsilon", "delta"):
            if not 0 < (value := getattr(self, name)) <= 1 or math.isnan(value):
                raise ValueError(f"decode.{name}={value:g} must be above 0 and at most 1")

    @property
    def is_lossy(self) -> bool:
        """Whether the text may be another than the model's."""
        return self.verify == TYPICAL

    @property
    def lossy(self) -> str:
        return self.verify if self.is_lossy else ""

    def check_model(self, model: ModelTraits) -> None:
        if model.heads is None:
            raise ValueError(
                f"decode=medusa needs heads, and none are loaded for {model.name}; start with model.heads=FOLDER, or "
                "use another method, such as decode=auto"
            )

    def row_bounds(self) -> RowBounds:
        return RowBounds(1, self.max_rows)

    def answer_spec(self, model: ModelTraits) -> AnswerSpec:
        assert model.heads is not None, "see check_model"
        num_heads, vocab_size = model.heads
        return AnswerSpec(Ahead(num_heads, min(self.candidates, vocab_size)))

    def make_decoder(self, request: Request, context: DecodingContext) -> MedusaDecoder:
        return MedusaDecoder(self)


class MedusaDecoder(Decoder):
    """All of its drafts come from one row's guesses."""

    def __init__(self, settings: Medusa):
        self._most_drafts = settings.max_rows - 1
        # Of the lossy typical acceptance: epsilon and delta; None if drafts are accepted exactly.
        self._typical = (settings.epsilon, settings.delta) if settings.is_lossy else None
        # By depth below the root, from 1: the tokens that a head guesses, and their probabilities.
        self._guesses: list[tuple[list[int], list[float]]] = []
        self._passed = 0  # depths whose tokens the text has, for which there is no guess any more
        self._rates: HitRates | None = None
        self._root, self._grown = 0, Grown([], [], [], [])

    @property
    def num_drafts(self) -> int:
        return len(self.tree) - 1

    @property
    def expected(self) -> float:
        return 1.0 + sum(self._grown.odds[: self.num_drafts])

    def plan(self, tokens: Sequence[int], room: int, wanted: int) -> TokenTree:
        return self.build_tree(len(self.propose(tokens, room, wanted, 1).odds))

    def propose(self, tokens: Sequence[int], room: int, wanted: int, load: int) -> ProposedDrafts:
        ahead = self._guesses[: greatest_depth(room, wanted)]
        rates = self._rates
        ranked = [rates.ranked(self._passed + depth, *own) for depth, own in enumerate(ahead)] if rates else []
        self._root, self._grown = tokens[-1], grow(ranked, self._most_drafts)
        return ProposedDrafts(1, self._grown.odds)

    def build_tree(self, num_drafts: int) -> TokenTree:
        if not num_drafts:
            self.tree = chain([self._root])
            return self.tree
        drafts, parents, depths, _ = (part[:num_drafts] for part in self._grown)
        tree = TokenTree(np.array([self._root, *drafts]), np.array([PREFIX, *parents]), np.array([0, *depths]))
        if self._typical is not None:
            tree = replace(tree, coupled=Coupled.of_children(tree, TYPICAL, self._typical))
        self.tree = tree
        return tree

    def keep(self, rows: Sequence[int]) -> TokenTree:
        self.tree = self.tree.take(rows)
        return self.tree

    def follow(self, tokens: Sequence[int], more: Sequence[int]) -> None:
        del self._guesses[: len(more)]
        self._passed += len(more)

    def commit(self, tokens: Sequence[int], answers: Answers) -> tuple[Accepted, CountDrafts]:
        accepted = verify(self.tree, answers.targets)
        self._learn(accepted.tokens)
        assert answers.guesses is not None, "the caller has checked that there are heads"
        row = accepted.rows[-1]
        all_tokens, all_odds = answers.guesses.tokens[row].tolist(), answers.guesses.odds[row].tolist()
        self._guesses, self._passed = list(zip(all_tokens, all_odds, strict=True)), 0
        if self._rates is None:
            self._rates = HitRates(*answers.guesses.tokens.shape[1:])
        if not self.num_drafts:
            return accepted, no_drafts
        drafted = Drafted(Counter({SOURCE: self.num_drafts}), [SOURCE] * len(accepted.drafted))
        return accepted, lambda: drafted

    def _learn(self, right: Sequence[int]) -> None:
        """Counts the guesses by what followed the root: each but the last token was a right draft."""
        for depth, (own, token) in enumerate(zip(self._guesses, right, strict=False)):
            assert self._rates is not None
            self._rates.learn(self._passed + depth, *own, token)

    def describe(self) -> Described:
        return Described(["root", *[SOURCE] * self.num_drafts])

    def fingerprint(self) -> int:
        state = self._guesses, self._passed, self._rates and self._rates.state()
        return zlib.crc32(repr(state).encode()) >> 1


# The most that a draft's probability is taken to be, so that no path is as likely as a longer one.
MOST_SURE = 0.99


class Ranked(NamedTuple):
    """What one head guesses, the likeliest first, and how likely each token is."""

    tokens: list[int]
    odds: list[float]


class Grown(NamedTuple):
    """Drafts in the order of their probability. Each draft's parent, a row of the tree, comes before it; row 0 is the
    root. odds: the probability that all drafts down to this one are accepted.
    """

    tokens: list[int]
    parents: list[int]
    depths: list[int]
    odds: list[float]


def grow(heads: Sequence[Ranked], most: int) -> Grown:
    """The likeliest paths through the heads' guesses, at most so many drafts. heads: by depth, from 1."""
    grown = Grown([], [], [], [])
    # Of each draft that may come next: its negated probability, a number that breaks ties, its parent's row, its
    # depth, its place among the head's guesses, and the parent's probability.
    waiting: list[tuple[float, int, int, int, int, float]] = []
    count = 0

    def offer(parent: int, depth: int, place: int, above: float) -> None:
        nonlocal count
        if depth <= len(heads) and place < len(heads[depth - 1].tokens):
            count += 1
            heapq.heappush(waiting, (-above * heads[depth - 1].odds[place], count, parent, depth, place, above))

    offer(0, 1, 0, 1.0)
    while waiting and len(grown.tokens) < most:
        negated, _, parent, depth, place, above = heapq.heappop(waiting)
        grown.tokens.append(heads[depth - 1].tokens[place])
        grown.parents.append(parent)
        grown.depths.append(depth)
        grown.odds.append(-negated)
        offer(parent, depth, place + 1, above)
        offer(len(grown.tokens), depth + 1, 0, -negated)
    return grown


class HitRates:
    """How often guesses were right, by head and place, against how often their probabilities said they would be.

    A head is asked what follows whatever path; its guess counts only where all drafts above it were right.
    """

    # Each trial multiplies the weight of all earlier ones by this.
    DECAY = 0.98
    # What the heads' own probabilities count for, in right guesses.
    PRIOR = 2.0

    def __init__(self, num_heads: int, num_guesses: int):
        self._right = [[self.PRIOR] * num_guesses for _ in range(num_heads)]
        self._expected = [[self.PRIOR] * num_guesses for _ in range(num_heads)]

    def ranked(self, head: int, tokens: Sequence[int], odds: Sequence[float]) -> Ranked:
        """A head's guesses by the probability that they are right where their turn comes."""
        rates = zip(self._right[head], self._expected[head], strict=True)
        likely = [min(MOST_SURE, own * right / said) for own, (right, said) in zip(odds, rates, strict=False)]
        ranks = sorted(range(len(likely)), key=lambda rank: -likely[rank])
        return Ranked([tokens[rank] for rank in ranks], [likely[rank] for rank in ranks])

    def learn(self, head: int, tokens: Sequence[int], odds: Sequence[float], right: int) -> None:
        """Counts a head's guesses where a token turned out to be right."""
        all_right, expected = self._right[head], self._expected[head]
        for rank, (token, own) in enumerate(zip(tokens, odds, strict=True)):
            all_right[rank] = self.PRIOR + self.DECAY * (all_right[rank] - self.PRIOR) + (token == right)
            expected[rank] = self.PRIOR + self.DECAY * (expected[rank] - self.PRIOR) + own

    def state(self) -> object:
        """All that it knows, for a checksum."""
        return self._right, self._expected
