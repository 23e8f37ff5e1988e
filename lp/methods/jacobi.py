"""Plain Jacobi decoding (arXiv 2402.02057, section 2): a chain of guesses that every step improves and shifts."""

from __future__ import annotations

import random
import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from lp.decoder import Decoder, Described
from lp.drafting.account import WindowChoice, WindowTrial
from lp.drafting.history import LONGEST_CHAIN, ChainProfile, DraftHistory
from lp.request import DecodingContext, DecodingMethod, Request, RowBounds
from lp.tree import Accepted, Answers, CountDrafts, Drafted, TokenTree, as_guesses, chain, greatest_depth, verify

# A number of guesses as large as pays off.
AUTO = "auto"


@dataclass
class Jacobi(DecodingMethod):
    """Plain Jacobi decoding (arXiv 2402.02057, section 2): each step improves a chain of guesses and moves it on.

    window: number of guesses; "auto" tries out how many pay off on this machine, up to LONGEST_CHAIN.
    """

    method: ClassVar[str] = "jacobi"
    window: int | str = 8

    def check_values(self) -> None:
        if isinstance(self.window, str) and self.window != AUTO:
            raise ValueError(f"decode.window={self.window} must be a number of guesses, or auto")

    def row_bounds(self) -> RowBounds:
        num_rows = 1 + (self.window if isinstance(self.window, int) else LONGEST_CHAIN)
        return RowBounds(num_rows, num_rows, by_time=self.window == AUTO)

    def windows_tried(self, history: DraftHistory, temperature: float) -> WindowChoice | None:
        return history.chains(temperature).lengths if self.window == AUTO else None

    def make_decoder(self, request: Request, context: DecodingContext) -> JacobiDecoder:
        assert request.sampling.seed is not None and request.sampling.temperature is not None
        chains = context.history.chains(request.sampling.temperature) if self.window == AUTO else None
        return JacobiDecoder(self, [*request.prompt, *context.generated], request.sampling.seed, chains)


class JacobiDecoder(Decoder):
    """A chain of guesses under the root. Every step replaces each guess by the model's answer to the one before it."""

    def __init__(self, settings: Jacobi, prompt: Sequence[int], seed: int, chains: ChainProfile | None = None):
        """chains: tries out how many guesses a step has; None if the settings say it."""
        self.random = random.Random(seed)
        self.source = list(prompt)
        self.size = settings.window if isinstance(settings.window, int) else LONGEST_CHAIN
        self.guesses = self._fresh(self.size)
        self.chains = chains
        self.trial: WindowTrial | None = None

    def _fresh(self, count: int) -> list[int]:
        return self.random.choices(self.source, k=count)

    def plan(self, tokens: Sequence[int], room: int, wanted: int) -> TokenTree:
        most = min(self._chosen_size(), greatest_depth(room, wanted))
        self.tree = chain([tokens[-1], *self.guesses[:most]])
        return self.tree

    def _chosen_size(self) -> int:
        if self.chains is None:
            return self.size
        if self.trial is None or not self.trial.num_left:
            following = self.trial and self.trial.following
            self.trial = following or self.chains.lengths.choose()
        return self.trial.size.columns

    def commit(self, tokens: Sequence[int], answers: Answers) -> tuple[Accepted, CountDrafts]:
        accepted = verify(self.tree, answers.targets)
        num_rows, num_accepted = len(self.tree), len(accepted.tokens)
        if self.chains is not None and self.trial is not None:
            seconds = self.chains.cost.step_s(num_rows, num_rows - 1)
            self.chains.lengths.learn(self.trial, num_accepted, seconds)
        improved = as_guesses(answers.targets).tolist() + self.guesses[num_rows:]
        self._move_to(improved[num_accepted:])
        drafted = Drafted(Counter(jacobi=num_rows - 1), ["jacobi"] * len(accepted.drafted))
        return accepted, lambda: drafted

    def follow(self, tokens: Sequence[int], more: Sequence[int]) -> None:
        self._move_to(self.guesses[len(more) :])

    def _move_to(self, guesses: list[int]) -> None:
        """Takes over what is known of the guesses from the present root on, and draws the others."""
        self.guesses = guesses + self._fresh(self.size - len(guesses))

    def describe(self) -> Described:
        return Described(["root", *["jacobi"] * (len(self.tree) - 1)])

    def fingerprint(self) -> int:
        tried = None if self.chains is None else (self.trial, self.chains.lengths.state())
        return zlib.crc32(repr((self.guesses, tried)).encode()) >> 1
