"""Solves a block of tokens by Jacobi or Gauss-Seidel iteration and keeps every iterate.

Greedy decoding of K tokens is a triangular system of K equations: y_i is the likeliest token after the prompt and
y_1 ... y_(i-1). Its only fixed point is greedy decoding's text (Song et al., arXiv 2002.03629; arXiv 2402.02057,
section 2). Jacobi iteration updates all open tokens in one call of the model, from the iterate before.
Gauss-Seidel iteration updates one after another, each from the newest values of those before it; as each needs the
one before, that is a call for each token: autoregressive decoding. A pool adds n-grams of the iterates so far to
either: drafts that the same call verifies. Knows nothing of how a model is run.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum

import numpy as np

from lp.methods.ngram_pool import NGramPool, merge
from lp.tree import TokenTree, TreeBuilder, as_guesses, verify

# The model's answers to a tree whose root is the last of the tokens: [R] targets.
Ask = Callable[[list[int], TokenTree], np.ndarray]


class Order(Enum):
    """The order in which the tokens of a block are updated."""

    jacobi = "Jacobi"
    gauss_seidel = "Gauss-Seidel"


@dataclass(frozen=True)
class Pool:
    """The n-grams of an iteration with a pool. ngram: N, tokens of each. guesses: G, the most that a call verifies."""

    ngram: int = 4
    guesses: int = 4


@dataclass(frozen=True)
class Iterate:
    """The block after a call of the model, or before the first.

    tokens: the block; None where no value was computed yet. num_settled: how many of the first are sure to be right.
    num_rows: rows of the call.
    """

    tokens: list[int | None]
    num_settled: int
    num_rows: int

    def right(self, truth: Sequence[int]) -> list[bool]:
        """Tells for each token whether it is that of the fixed point, be it by chance."""
        return [token == expected for token, expected in zip(self.tokens, truth, strict=True)]


@dataclass
class Block:
    """A block of `size` tokens after a prompt while it is solved.

    settled: its first tokens, which are right. open: values of the others; empty in Gauss-Seidel iteration. iterates:
    all values so far, for n-grams, in Jacobi iteration.
    """

    prompt: list[int]
    size: int
    settled: list[int]
    open: list[int]
    pool: NGramPool | None
    iterates: list[list[int]] = field(default_factory=list)

    @property
    def num_left(self) -> int:
        return self.size - len(self.settled)

    def tree(self, guesses: int) -> TokenTree:
        """The rows of the next call: the root, the open tokens but the last, and drafts from the pool."""
        root = (self.settled or self.prompt)[-1]
        builder = TreeBuilder(root)
        row = 0
        for token in self.open[:-1]:
            row = builder.add(token, row)
        if self.pool:
            merge(builder, self.pool.lookup(root, guesses), self.num_left - 1)
        return builder.build()

    def take(self, tree: TokenTree, targets: np.ndarray) -> None:
        """Settles what the answers confirm, updates the open tokens and learns n-grams."""
        updated = [*self.settled, *as_guesses(targets)[: len(self.open)].tolist()]
        accepted = verify(tree, targets).tokens[: self.num_left]
        before = len(self.settled)
        self.settled += accepted
        if self.open:
            self.open = updated[len(self.settled) :]
            self.iterates.append(self.settled + self.open)
        if self.pool:
            self._learn(self.pool, before)

    def _learn(self, pool: NGramPool, before: int) -> None:
        """Adds the text's new n-grams, and those whose tokens each come from a later iterate than the one before."""
        if len(self.iterates) >= pool.ngram:
            newest = self.iterates[-pool.ngram :]
            for start in range(self.size - pool.ngram + 1):
                pool.add([iterate[start + place] for place, iterate in enumerate(newest)], "window")
        text = self.prompt[-pool.ngram :] + self.settled
        num_new = len(self.settled) - before
        pool.add_text(text[-num_new - pool.ngram + 1 :], "text")

    def iterate(self, num_rows: int) -> Iterate:
        tokens: list[int | None] = [*self.settled, *self.open]
        return Iterate(tokens + [None] * (self.size - len(tokens)), len(self.settled), num_rows)


def solve(ask: Ask, prompt: list[int], size: int, order: Order, pool: Pool | None, seed: int = 0) -> list[Iterate]:
    """All iterates of a block, from the first guess to the fixed point.

    size: K. pool: None for none; it begins with the prompt's n-grams. seed: for the first guess of Jacobi iteration,
    which is drawn from the prompt's tokens.
    """
    assert size >= 1 and prompt
    first = random.Random(seed).choices(prompt, k=size) if order is Order.jacobi else []
    ngrams = None
    if pool:
        ngrams = NGramPool(pool.ngram, capacity=65_536, per_token=64)
        ngrams.add_text(prompt, "text")
    block = Block(list(prompt), size, [], first, ngrams, [first] if first else [])
    found = [block.iterate(0)]
    while block.num_left:
        tree = block.tree(pool.guesses if pool else 0)
        block.take(tree, ask([*prompt, *block.settled], tree))
        found.append(block.iterate(len(tree)))
    return found
