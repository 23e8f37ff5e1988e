"""The decoding methods and the one loop body they share: plan a token tree, commit the targets.

A method is what it hangs under the root: nothing (autoregressive), a chain of Jacobi guesses (jacobi), n-grams found
in the text so far (prompt_lookup), or those, the window's n-grams and the window itself (lookahead); auto is a package
of its own. Knows nothing of models, devices or ranks.
"""

from __future__ import annotations

import random
import zlib
from collections import Counter
from collections.abc import Sequence

from lp.decoding.auto import AutoDecoder
from lp.decoding.base import Decoder, Drafted
from lp.decoding.ngrams import NGramPool
from lp.decoding.tries import merge
from lp.decoding.window import Window
from lp.drafting.history import DraftHistory
from lp.methods import Auto, Autoregressive, DecodeSettings, Jacobi, Lookahead, PromptLookup
from lp.tree import TokenTree, TreeBuilder
from lp.verification import Accepted, Answers, as_guesses, verify


def make_decoder(
    settings: DecodeSettings,
    prompt: Sequence[int],
    seed: int,
    temperature: float,
    history: DraftHistory,
    owner: str | None = None,
) -> Decoder:
    """seed: of the tokens that fill window cells and Jacobi guesses that have no guess yet. temperature: 0 is greedy.
    history: of the engine. owner: whose requests these are, if they may share what they know.
    """
    match settings:
        case Auto():
            return AutoDecoder(settings, prompt, seed, temperature, history, owner)
        case Autoregressive():
            return LookaheadDecoder(None, None, 0)
        case Jacobi():
            return JacobiDecoder(settings, prompt, seed)
        case PromptLookup():
            return LookaheadDecoder(None, PoolFeed(settings, prompt, windowed=False), settings.guesses)
        case Lookahead():
            window = Window(settings.window, settings.ngram - 1, prompt, seed)
            feed = PoolFeed(settings, prompt, windowed=settings.window_drafts)
            return LookaheadDecoder(window, feed, settings.guesses, settings.position_noise)


class PoolFeed:
    """An n-gram pool and the texts that feed it."""

    def __init__(self, settings: PromptLookup | Lookahead, prompt: Sequence[int], windowed: bool):
        self.pool = NGramPool(settings.ngram, settings.pool_size, settings.pool_per_token)
        self.windowed = windowed
        self.generated = settings.generated_drafts
        self.start = 0 if settings.prompt_drafts else len(prompt)
        if settings.prompt_drafts:
            self.pool.add_text(prompt, "prompt")

    def learn(self, ngrams: list[tuple[int, ...]], tokens: Sequence[int], accepted: list[int]) -> None:
        """Takes the window's n-grams, and those of the text that end in an accepted token."""
        if self.windowed:
            for ngram in ngrams:
                self.pool.add(ngram, "window")
        if self.generated:
            before = max(self.start, len(tokens) - (self.pool.ngram - 1))
            self.pool.add_text([*tokens[before:], *accepted], "generated")


class LookaheadDecoder:
    """A window or none, a pool or none: autoregressive, prompt_lookup and lookahead.

    Drafts alone are verified; what the window's cells have right comes to use by way of the pool.
    """

    num_candidates = 0

    def __init__(self, window: Window | None, feed: PoolFeed | None, guesses: int, position_noise: bool = True):
        """guesses: G. position_noise: see Lookahead."""
        self.window = window
        self.feed = feed
        self.guesses = guesses
        self.position_noise = position_noise
        self.sources: dict[int, str] = {}
        self.tree: TokenTree

    def plan(self, tokens: Sequence[int], room: int, wanted: int) -> TokenTree:
        builder = TreeBuilder(tokens[-1])
        self.sources = {}
        if self.feed:
            self.sources = merge(builder, self.feed.pool.lookup(tokens[-1], self.guesses), min(room, wanted - 1))
        if self.window and self.window.depth > room:
            self.window = None  # it would stand beyond the model's last position, and room only shrinks
        if self.window:
            self.window.plan(builder)
        self.tree = builder.build(greedy_from=None if self.position_noise else self._num_verified)
        return self.tree

    @property
    def _num_verified(self) -> int:
        """The root and the drafts, which come before the window's cells."""
        return 1 + len(self.sources)

    def commit(self, tokens: Sequence[int], answers: Answers) -> tuple[Accepted, Drafted]:
        accepted = verify(self.tree, answers.targets, self._num_verified)
        ngrams = self.window.commit(answers.targets, len(accepted.tokens)) if self.window else []
        if self.feed:
            self.feed.learn(ngrams, tokens, accepted.tokens)
        return accepted, Drafted(Counter(self.sources.values()), [self.sources[row] for row in accepted.rows[1:]])

    def fingerprint(self) -> int:
        window = self.window.cells if self.window else []
        pool = list(self.feed.pool.items()) if self.feed else []
        return zlib.crc32(repr((window, pool)).encode()) >> 1


class JacobiDecoder:
    """A chain of guesses under the root; every step replaces each guess by the model's answer to the one before."""

    num_candidates = 0

    def __init__(self, settings: Jacobi, prompt: Sequence[int], seed: int):
        self.random = random.Random(seed)
        self.source = list(prompt)
        self.size = settings.window
        self.guesses = self._fresh(self.size)
        self.tree: TokenTree

    def _fresh(self, count: int) -> list[int]:
        return self.random.choices(self.source, k=count)

    def plan(self, tokens: Sequence[int], room: int, wanted: int) -> TokenTree:
        builder = TreeBuilder(tokens[-1])
        row = 0
        for guess in self.guesses[: min(room, wanted - 1)]:
            row = builder.add(guess, row)
        self.tree = builder.build()
        return self.tree

    def commit(self, tokens: Sequence[int], answers: Answers) -> tuple[Accepted, Drafted]:
        accepted = verify(self.tree, answers.targets)
        improved = as_guesses(answers.targets)[len(accepted.tokens) :].tolist()
        self.guesses = improved + self._fresh(self.size - len(improved))
        return accepted, Drafted(Counter(jacobi=len(self.tree) - 1), ["jacobi"] * len(accepted.drafted))

    def fingerprint(self) -> int:
        return zlib.crc32(repr(self.guesses).encode()) >> 1
