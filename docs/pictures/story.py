"""A short text that is decoded by the project's own code, for the pictures. Only the model is a toy.

It continues a text by looking up the longest match in the story. Knows nothing of how a real model is run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from lp.methods.ngram_pool import NGramPool, merge
from lp.methods.window import Window
from lp.tree import TokenTree, TreeBuilder, verify
from parallel.runners.partition import partition

TEXT = (
    "the boat left the harbour at dawn and the boat came back to the harbour at night and the boat left the harbour at "
    "dawn again and came back to the harbour at noon and the boat came back to the town at night and left again"
)
NUM_PROMPT, NUM_STEPS, SEED = 26, 6, 1
COLUMNS, NGRAM, GUESSES = 5, 4, 3


@dataclass(frozen=True)
class Step:
    """One step as it is drawn.

    words: the word of each token id. text: tokens up to the root. num_drafts: rows 1 to num_drafts are drafts, the
    rows after them the window's cells, level by level. parts: ascending rows of each of two ranks. accepted: the rows
    walked, the root first. emitted: the tokens that the step yields. targets: the model's answer to each row.
    """

    words: list[str]
    text: list[int]
    tree: TokenTree
    num_drafts: int
    parts: list[list[int]]
    accepted: list[int]
    emitted: list[int]
    targets: list[int]

    def ranks(self, row: int) -> str:
        """The ranks that compute a row, such as 01."""
        return "".join(str(rank) for rank, part in enumerate(self.parts) if row in part)


def steps(text: str = TEXT, num_prompt: int = NUM_PROMPT) -> Iterator[Step]:
    """Decodes the story step by step. It ends only where the reader stops."""
    words: list[str] = sorted(set(text.split()))
    story = [words.index(word) for word in text.split()]
    tokens = story[:num_prompt]
    window, pool = Window(COLUMNS, NGRAM - 1, tokens, SEED), NGramPool(NGRAM, capacity=1000, per_token=8)
    pool.add_text(tokens, "text")
    while True:
        builder = TreeBuilder(tokens[-1])
        num_drafts = len(merge(builder, pool.lookup(tokens[-1], GUESSES), NGRAM - 1))
        window.plan(builder)
        tree = builder.build()
        paths = [tokens[:-1] + tree.tokens[tree.path(row)].tolist() for row in range(len(tree))]
        targets = np.array([toy_model(story, path) for path in paths])
        accepted = verify(tree, targets, 1 + num_drafts)
        rows = [0, *(rows[0] for rows in accepted.drafted)]
        yield Step(words, tokens, tree, num_drafts, partition(tree, 2), rows, accepted.tokens, targets.tolist())
        for ngram in window.commit(targets, len(accepted.tokens)):
            pool.add(ngram, "window")
        tokens = tokens + accepted.tokens
        pool.add_text(tokens[-len(accepted.tokens) - NGRAM + 1 :], "text")


def chosen_step() -> Step:
    """The step that is drawn: it accepts several drafts."""
    story = steps()
    return [next(story) for _ in range(NUM_STEPS)][-1]


def toy_model(story: Sequence[int], path: Sequence[int]) -> int:
    """The token that follows the longest end of `path` found in the story."""

    def length(end: int) -> int:
        longest = min(len(path), end)
        return next((k for k in range(longest) if path[-1 - k] != story[end - 1 - k]), longest)

    return story[max(range(1, len(story)), key=length)]
