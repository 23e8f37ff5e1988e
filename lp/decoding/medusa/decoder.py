"""Drafts from the model's heads (Medusa, arXiv 2401.10774, section 2.1).

With each row's answer come the heads' guesses of what follows the answer. Those of the last accepted row become the
tree of the next step, so the first step of a text has none.

    R rows of a tree, H heads, G guesses of each
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from lp.decoding.base import Described, Offer
from lp.decoding.medusa.growth import Grown, HitRates, grow
from lp.decoding.medusa.settings import TYPICAL, Medusa
from lp.tree import (
    PREFIX,
    Accepted,
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


class MedusaDecoder:
    """See Decoder. All of its drafts come from one row's guesses."""

    num_candidates = 0
    is_shared = True
    tree: TokenTree

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
        return self.take(len(self.offer(tokens, room, wanted, 1).odds))

    def offer(self, tokens: Sequence[int], room: int, wanted: int, load: int) -> Offer:
        ahead = self._guesses[: greatest_depth(room, wanted)]
        rates = self._rates
        ranked = [rates.ranked(self._passed + depth, *own) for depth, own in enumerate(ahead)] if rates else []
        self._root, self._grown = tokens[-1], grow(ranked, self._most_drafts)
        return Offer(1, self._grown.odds)

    def take(self, num_drafts: int) -> TokenTree:
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
        assert answers.guesses is not None, "whoever makes this decoder has checked that there are heads"
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

    def described(self) -> Described:
        return Described(["root", *[SOURCE] * self.num_drafts])

    def fingerprint(self) -> int:
        state = self._guesses, self._passed, self._rates and self._rates.state()
        return zlib.crc32(repr(state).encode()) >> 1
