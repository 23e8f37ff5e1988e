"""Drafts what followed the most recent earlier occurrence of the last tokens.

In earnest this file would be lp/methods/repeat.py. It has all that the project must know of the method.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from lp.decoder import Decoder
from lp.request import DecodingContext, DecodingMethod, Request, RowBounds
from lp.tree import Accepted, Answers, CountDrafts, Drafted, TokenTree, chain, greatest_depth, verify


@dataclass
class Repeat(DecodingMethod):
    """Drafts the continuation of the most recent earlier occurrence of the last n-gram.

    ngram: N, tokens of the n-gram. depth: the most drafts that follow one another.
    """

    method: ClassVar[str] = "repeat"
    ngram: int = 2
    depth: int = 8

    def row_bounds(self) -> RowBounds:
        return RowBounds(1 + self.depth, 1 + self.depth)

    def make_decoder(self, request: Request, context: DecodingContext) -> RepeatDecoder:
        return RepeatDecoder(self)


class RepeatDecoder(Decoder):
    """A chain under the root, which is the last token of the sequence."""

    def __init__(self, settings: Repeat):
        self.settings = settings

    def plan(self, tokens: Sequence[int], room: int, wanted: int) -> TokenTree:
        drafts = self._continuation(list(tokens))[: greatest_depth(room, wanted)]
        self.tree = chain([tokens[-1], *drafts])
        return self.tree

    def _continuation(self, tokens: list[int]) -> list[int]:
        length, depth = self.settings.ngram, self.settings.depth
        for end in range(len(tokens) - 1, length - 1, -1):
            if tokens[end - length : end] == tokens[-length:]:
                return tokens[end : end + depth]
        return []

    def commit(self, tokens: Sequence[int], answers: Answers) -> tuple[Accepted, CountDrafts]:
        accepted = verify(self.tree, answers.targets)
        drafted = Drafted(Counter(repeat=len(self.tree) - 1), ["repeat"] * len(accepted.drafted))
        return accepted, lambda: drafted

    def fingerprint(self) -> int:
        return 0  # the tokens are all that it knows
