"""Plain Jacobi decoding (arXiv 2402.02057, section 2): a chain of guesses that every step improves and shifts."""

from __future__ import annotations

import random
import zlib
from collections import Counter
from collections.abc import Sequence

from lp.decoding.base import WholeTrees
from lp.methods import Jacobi
from lp.tree import TokenTree, TreeBuilder
from lp.verification import Accepted, Answers, CountDrafts, Drafted, as_guesses, verify


class JacobiDecoder(WholeTrees):
    """A chain of guesses under the root. Every step replaces each guess by the model's answer to the one before it."""

    num_candidates = 0
    is_shared = True

    def __init__(self, settings: Jacobi, prompt: Sequence[int], seed: int):
        self.random = random.Random(seed)
        self.source = list(prompt)
        self.size = settings.window
        self.guesses = self._fresh(self.size)

    def _fresh(self, count: int) -> list[int]:
        return self.random.choices(self.source, k=count)

    def plan(self, tokens: Sequence[int], room: int, wanted: int) -> TokenTree:
        builder = TreeBuilder(tokens[-1])
        row = 0
        for guess in self.guesses[: min(room, wanted - 1)]:
            row = builder.add(guess, row)
        self.tree = builder.build()
        return self.tree

    def commit(self, tokens: Sequence[int], answers: Answers) -> tuple[Accepted, CountDrafts]:
        accepted = verify(self.tree, answers.targets)
        improved = as_guesses(answers.targets)[len(accepted.tokens) :].tolist()
        self.guesses = improved + self._fresh(self.size - len(improved))
        drafted = Drafted(Counter(jacobi=len(self.tree) - 1), ["jacobi"] * len(accepted.drafted))
        return accepted, lambda: drafted

    def follow(self, tokens: Sequence[int], more: Sequence[int]) -> None:
        guesses = self.guesses[len(more) :]
        self.guesses = guesses + self._fresh(self.size - len(guesses))

    def fingerprint(self) -> int:
        return zlib.crc32(repr(self.guesses).encode()) >> 1
