"""Autoregressive decoding: one token per step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from lp.decoder import Decoder
from lp.request import DecodingContext, DecodingMethod, Request, RowBounds
from lp.tree import Accepted, Answers, CountDrafts, TokenTree, chain, no_drafts, verify


@dataclass
class Autoregressive(DecodingMethod):
    """Plain decoding, one token per step: the baseline."""

    method: ClassVar[str] = "autoregressive"

    @property
    def takes_forced(self) -> bool:
        return False

    def row_bounds(self) -> RowBounds:
        return RowBounds()

    def make_decoder(self, request: Request, context: DecodingContext) -> AutoregressiveDecoder:
        return AutoregressiveDecoder()


class AutoregressiveDecoder(Decoder):
    """Its trees are the root alone."""

    def plan(self, tokens: Sequence[int], room: int, wanted: int) -> TokenTree:
        self.tree = chain(tokens[-1:])
        return self.tree

    def commit(self, tokens: Sequence[int], answers: Answers) -> tuple[Accepted, CountDrafts]:
        return verify(self.tree, answers.targets), no_drafts

    def fingerprint(self) -> int:
        return 0
