"""Decoding with an n-gram pool and a lookahead window (arXiv 2402.02057, section 3).

With both this is `lookahead`, without the window `prompt_lookup`, and without either `autoregressive`. Only drafts from
the pool are verified. The window's cells are never accepted themselves: they yield n-grams for the pool.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Sequence

from lp.decoding.base import Described, WholeTrees
from lp.decoding.ngrams import NGramPool
from lp.decoding.tries import merge
from lp.decoding.window import Window
from lp.methods import Lookahead, PromptLookup
from lp.tree import Accepted, Answers, CountDrafts, Drafted, TokenTree, TreeBuilder, chain, no_drafts, verify


class PoolFeed:
    """An n-gram pool and the texts that feed it.

    windowed: whether the window's n-grams feed it. generated: whether the generated text does. start: the first token
    of the sequence whose n-grams may feed it.
    """

    def __init__(self, settings: PromptLookup | Lookahead, prompt: Sequence[int], windowed: bool):
        self.pool = NGramPool(settings.ngram, settings.pool_size, settings.pool_per_token)
        self.windowed = windowed
        self.generated = settings.generated_drafts
        self.start = 0 if settings.prompt_drafts else len(prompt)
        if settings.prompt_drafts:
            self.pool.add_text(prompt, "prompt")

    def learn(self, ngrams: list[tuple[int, ...]], tokens: Sequence[int], accepted: list[int]) -> None:
        """Adds the window's n-grams, and those of the text that end in an accepted token."""
        if self.windowed:
            for ngram in ngrams:
                self.pool.add(ngram, "window")
        if self.generated:
            before = max(self.start, len(tokens) - (self.pool.ngram - 1))
            self.pool.add_text([*tokens[before:], *accepted], "generated")


class LookaheadDecoder(WholeTrees):
    """The Decoder of the methods autoregressive, prompt_lookup and lookahead, by whether it has a window and a pool."""

    num_candidates = 0

    def __init__(self, window: Window | None, feed: PoolFeed | None, guesses: int, position_noise: bool = True):
        """guesses: G, n-grams verified a step. position_noise: see Lookahead."""
        self.is_shared = window is not None or feed is not None  # a single row cannot be shared
        self.window = window
        self.feed = feed
        self.guesses = guesses
        self.position_noise = position_noise
        self.sources: dict[int, str] = {}

    def plan(self, tokens: Sequence[int], room: int, wanted: int) -> TokenTree:
        if not self.feed and not self.window:
            self.tree = chain(tokens[-1:])
            return self.tree
        builder = TreeBuilder(tokens[-1])
        self.sources = {}
        if self.feed:
            self.sources = merge(builder, self.feed.pool.lookup(tokens[-1], self.guesses), min(room, wanted - 1))
        if self.window and self.window.depth > room:
            self.window = None  # it would reach beyond the model's last position, and room only shrinks
        if self.window:
            self.window.plan(builder)
        self.tree = builder.build(greedy_from=None if self.position_noise else self._num_verified)
        return self.tree

    @property
    def num_drafts(self) -> int:
        return len(self.sources)

    @property
    def _num_verified(self) -> int:
        """Number of rows of the root and the drafts, which come before the window's cells."""
        return 1 + len(self.sources)

    def keep(self, rows: Sequence[int]) -> TokenTree:
        self.tree = self.tree.take([*rows, *range(self._num_verified, len(self.tree))])
        self.sources = {new: self.sources[old] for new, old in enumerate(rows) if new}
        if self.window:
            self.window.place(len(rows))
        return self.tree

    def follow(self, tokens: Sequence[int], more: Sequence[int]) -> None:
        if self.feed:
            self.feed.learn([], tokens, list(more))
        if self.window:
            self.window.slide(len(more))

    def commit(self, tokens: Sequence[int], answers: Answers) -> tuple[Accepted, CountDrafts]:
        accepted = verify(self.tree, answers.targets, self._num_verified)
        ngrams = self.window.commit(answers.targets, len(accepted.tokens)) if self.window else []
        if self.feed:
            self.feed.learn(ngrams, tokens, accepted.tokens)
        if not self.sources:
            return accepted, no_drafts
        sources = self.sources  # those of the next step replace them
        return accepted, lambda: Drafted(Counter(sources.values()), [sources[row] for row in accepted.rows[1:]])

    def described(self) -> Described:
        drafts, window = self.sources.values(), self.window
        names = ["root", *drafts, *["cell"] * (len(self.tree) - self._num_verified)]
        return Described(names, window and (window.columns, len(window.cells)), self.feed and len(self.feed.pool))

    def fingerprint(self) -> int:
        window = self.window.cells if self.window else []
        pool = list(self.feed.pool.items()) if self.feed else []
        return zlib.crc32(repr((window, pool)).encode()) >> 1
