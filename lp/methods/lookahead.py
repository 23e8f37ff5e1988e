"""Lookahead decoding: drafts from an n-gram pool that a lookahead window feeds (arXiv 2402.02057, section 3).

Only drafts from the pool are verified. The window's cells are never accepted themselves: they yield n-grams.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from lp.decoder import Described
from lp.methods.ngram_pool import NGramPool, PoolDecoder, PoolFeed
from lp.methods.window import Window
from lp.request import DecodingContext, DecodingMethod, Request, RowBounds
from lp.tree import Accepted, Answers, TokenTree, TreeBuilder


@dataclass
class Lookahead(DecodingMethod):
    """Lookahead decoding (arXiv 2402.02057, section 3).

    window: W, columns of the window. ngram: N, tokens of an n-gram; the window has N-1 levels. guesses: G, n-grams
    verified per step. window_drafts, prompt_drafts, generated_drafts: whether the n-grams of the window, the prompt and
    the output go into the pool. pool_size: n-grams kept in all. pool_per_token: n-grams kept that begin with the same
    token. position_noise: when sampling, window cells are drawn with the noise of their positions; False takes their
    likeliest tokens, as the paper does.
    """

    method: ClassVar[str] = "lookahead"
    window: int = 7
    ngram: int = 5
    guesses: int = 7
    window_drafts: bool = True
    prompt_drafts: bool = True
    generated_drafts: bool = True
    pool_size: int = 65_536
    pool_per_token: int = 64
    position_noise: bool = True

    def row_bounds(self) -> RowBounds:
        num_rows = (self.window + self.guesses) * (self.ngram - 1) + 1
        return RowBounds(num_rows, num_rows)

    def make_decoder(self, request: Request, context: DecodingContext) -> LookaheadDecoder:
        assert request.sampling.seed is not None
        text = [*request.prompt, *context.generated]
        pool = NGramPool(self.ngram, self.pool_size, self.pool_per_token)
        feed = PoolFeed(pool, text, self.prompt_drafts, self.generated_drafts)
        window = Window(self.window, self.ngram - 1, text, request.sampling.seed)
        return LookaheadDecoder(self, feed, window)


class LookaheadDecoder(PoolDecoder):
    """Its trees are [root, drafts of the pool, cells of the window]."""

    def __init__(self, settings: Lookahead, feed: PoolFeed, window: Window):
        super().__init__(feed, settings.guesses)
        self.window: Window | None = window
        self._window_drafts, self._position_noise = settings.window_drafts, settings.position_noise

    def plan(self, tokens: Sequence[int], room: int, wanted: int) -> TokenTree:
        builder = TreeBuilder(tokens[-1])
        self.add_drafts(builder, tokens[-1], room, wanted)
        if self.window and self.window.depth > room:
            self.window = None  # it would reach beyond the model's last position, and room only shrinks
        if self.window:
            self.window.plan(builder)
        self.tree = builder.build(greedy_from=None if self._position_noise else 1 + self.num_drafts)
        return self.tree

    def keep(self, rows: Sequence[int]) -> TokenTree:
        tree = super().keep(rows)
        if self.window:
            self.window.place(len(rows))
        return tree

    def follow(self, tokens: Sequence[int], more: Sequence[int]) -> None:
        super().follow(tokens, more)
        if self.window:
            self.window.slide(len(more))

    def learn(self, tokens: Sequence[int], answers: Answers, accepted: Accepted) -> None:
        ngrams = self.window.commit(answers.targets, len(accepted.tokens)) if self.window else []
        for ngram in ngrams if self._window_drafts else []:
            self.feed.pool.add(ngram, "window")
        super().learn(tokens, answers, accepted)

    def describe(self) -> Described:
        drafts, window = super().describe(), self.window
        cells = ["cell"] * (len(self.tree) - len(drafts.sources))
        return drafts._replace(sources=drafts.sources + cells, window=window and (window.columns, len(window.cells)))

    def fingerprint(self) -> int:
        window = self.window.cells if self.window else []
        return zlib.crc32(repr((window, list(self.feed.pool.items()))).encode()) >> 1
