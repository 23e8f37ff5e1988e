"""Parsers that find the pieces of an answer in its text as it comes.

However the text is cut, the pieces join to the same answer.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from launch.server.tools.call_text import CallText
from launch.server.tools.formats import Format
from launch.server.tools.json_value import JsonValue
from launch.server.tools.marked import MarkedParser
from launch.server.tools.pieces import CallPiece, Piece, TextPiece

# What Llama 3 may write before a call.
PYTHON_TAG = "<|python_tag|>"


class Parser(Protocol):
    """Turns the text of an answer into pieces."""

    def feed(self, text: str) -> list[Piece]: ...

    def finish(self) -> list[Piece]:
        """Returns what was held back, when the text is over."""
        ...


class TextParser:
    """All text is content."""

    def feed(self, text: str) -> list[Piece]:
        return [TextPiece("content", text)] if text else []

    def finish(self) -> list[Piece]:
        return []


class BareParser:
    """An answer that is nothing but JSON text of calls of known functions; any other answer is content."""

    def __init__(self, names: Collection[str]):
        self._head = ""
        self._names = names
        self._rest: Parser | None = None

    def feed(self, text: str) -> list[Piece]:
        if self._rest is not None:
            return self._rest.feed(text)
        self._head += text
        start = self._head.lstrip()
        if not start or (len(start) < len(PYTHON_TAG) and PYTHON_TAG.startswith(start)):
            return []
        calls = start.removeprefix(PYTHON_TAG).lstrip()
        if start != calls and not calls:
            return []
        if calls[0] in "{[":
            self._rest = CallText(names=self._names)
            return self._rest.feed(calls)
        self._rest = TextParser()
        return self._rest.feed(self._head)

    def finish(self) -> list[Piece]:
        return self._rest.finish() if self._rest is not None else TextParser().feed(self._head)


class ArgumentsParser:
    """An answer that is the arguments of one function and nothing else, as a grammar has forced it to be."""

    def __init__(self, name: str):
        self._name: str | None = name
        self._value: JsonValue | None = None
        self._is_over = False

    def feed(self, text: str) -> list[Piece]:
        more = ""
        for char in text:
            if self._is_over or (self._value is None and char.isspace()):
                continue
            if self._value is None:
                self._value, added = JsonValue(char), char
            else:
                self._is_over, added = self._value.push(char)
            more += added
        return self._tell(more) if more else []

    def finish(self) -> list[Piece]:
        return self._tell("") if self._name is not None else []

    def _tell(self, arguments: str) -> list[Piece]:
        name, self._name = self._name, None
        return [CallPiece(0, name, arguments)]


@dataclass
class FirstCallOnly:
    """Drops all calls but the first, for clients that want no parallel ones."""

    parser: Parser

    def feed(self, text: str) -> list[Piece]:
        return self._kept(self.parser.feed(text))

    def finish(self) -> list[Piece]:
        return self._kept(self.parser.finish())

    @staticmethod
    def _kept(pieces: list[Piece]) -> list[Piece]:
        return [piece for piece in pieces if not (isinstance(piece, CallPiece) and piece.index)]


def make_parser(form: Format, tools: Sequence[dict[str, Any]], prompt: str) -> Parser:
    """The parser of an answer that the model writes freely.

    tools: the functions that the model was told of, as in OpenAI's API. prompt: the end of the text that the model
    continues, since a chat template may begin the answer's reasoning itself.
    """
    bare = BareParser({tool["function"]["name"] for tool in tools}) if form.calls == "bare" else None
    if form.template is None:
        return bare or TextParser()
    return MarkedParser(form.template, tools, prompt, content=bare or TextParser())
