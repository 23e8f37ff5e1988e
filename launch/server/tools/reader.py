"""Reads one answer, part by part: drops the special tokens that mean nothing to a client, and finds the pieces."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from launch.server.tools.choice import ToolChoice, forced_parser
from launch.server.tools.formats import Format
from launch.server.tools.parsers import FirstCallOnly, Parser, make_parser
from launch.server.tools.pieces import Piece, merge


class Reader:
    """Reads one answer."""

    def __init__(self, parser: Parser, dropped: re.Pattern[str] | None = None):
        """dropped: special tokens that are part of the text and of no piece. A token comes in one part."""
        self._parser = parser
        self._dropped = dropped

    def read(self, text: str, is_last: bool) -> list[Piece]:
        """Adds text; returns what is now known. is_last: the answer is over."""
        if self._dropped is not None:
            text = self._dropped.sub("", text)
        pieces = self._parser.feed(text)
        return merge([*pieces, *self._parser.finish()] if is_last else pieces)


@dataclass(frozen=True)
class Reading:
    """How the answers to one request are read.

    tools: those that the model was told of. choice: what the model may call. prompt_end: the end of the
    prompt's text. kept: special tokens that mean something to the parser; the text must have them. others: special
    tokens that the text then has as well, and that are dropped.
    """

    form: Format
    tools: list[dict[str, Any]] = field(default_factory=list)
    choice: ToolChoice = field(default_factory=ToolChoice)
    allows_parallel: bool = True
    prompt_end: str = ""
    kept: frozenset[str] = frozenset()
    others: frozenset[str] = frozenset()

    def begin(self) -> Reader:
        """The reader of one answer."""
        if self.choice.is_forced:
            return Reader(forced_parser(self.choice))
        parser = make_parser(self.form, self.tools, self.prompt_end)
        dropped = None
        if self.kept and self.others:
            dropped = re.compile("|".join(map(re.escape, sorted(self.others, key=len, reverse=True))))
        return Reader(parser if self.allows_parallel else FirstCallOnly(parser), dropped)
