"""Prompt lookup: drafts from an n-gram pool of the text itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from lp.methods.ngram_pool import NGramPool, PoolDecoder, PoolFeed
from lp.request import DecodingContext, DecodingMethod, Request, RowBounds


@dataclass
class PromptLookup(DecodingMethod):
    """Drafts from the prompt and the generated text alone: the ablation of arXiv 2402.02057, table 3.

    ngram: N, tokens of an n-gram. guesses: G, n-grams verified per step. prompt_drafts, generated_drafts: whether the
    prompt's and the output's n-grams go into the pool. pool_size: n-grams kept in all. pool_per_token: n-grams kept
    that begin with the same token.
    """

    method: ClassVar[str] = "prompt_lookup"
    ngram: int = 5
    guesses: int = 7
    prompt_drafts: bool = True
    generated_drafts: bool = True
    pool_size: int = 65_536
    pool_per_token: int = 64

    def row_bounds(self) -> RowBounds:
        num_rows = self.guesses * (self.ngram - 1) + 1
        return RowBounds(num_rows, num_rows)

    def make_decoder(self, request: Request, context: DecodingContext) -> PoolDecoder:
        text = [*request.prompt, *context.generated]
        pool = NGramPool(self.ngram, self.pool_size, self.pool_per_token)
        return PoolDecoder(PoolFeed(pool, text, self.prompt_drafts, self.generated_drafts), self.guesses)
