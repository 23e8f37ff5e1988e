"""The parts of an answer: pieces as a stream gives them, blocks with a beginning and an end, and the whole."""

from __future__ import annotations

import secrets
import string
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Literal


def new_call_id() -> str:
    """An id for a call: nine letters and digits, as the chat templates of Mistral want them."""
    return "".join(secrets.choice(string.ascii_letters + string.digits) for _ in range(9))


@dataclass(frozen=True)
class TextPiece:
    """More text of the answer's content, or of the reasoning before it."""

    kind: Literal["content", "reasoning"]
    text: str


@dataclass(frozen=True)
class CallPiece:
    """More of one tool call.

    index: which call of the answer, from 0. name: the function, in the first piece of a call alone. arguments: more of
    the JSON text of its arguments.
    """

    index: int
    name: str | None
    arguments: str


Piece = TextPiece | CallPiece


@dataclass
class ToolCall:
    """A call of a function. arguments: JSON text, which is incomplete if the answer was cut short."""

    name: str
    arguments: str = ""


@dataclass
class Answer:
    """A whole answer."""

    content: str = ""
    reasoning: str = ""
    calls: list[ToolCall] = field(default_factory=list)


def join(pieces: Iterable[Piece]) -> Answer:
    """The answer that the pieces of a stream make, in their order."""
    answer = Answer()
    for piece in pieces:
        if isinstance(piece, CallPiece):
            if piece.name is not None:
                answer.calls.append(ToolCall(piece.name))
            answer.calls[piece.index].arguments += piece.arguments
        elif piece.kind == "content":
            answer.content += piece.text
        else:
            answer.reasoning += piece.text
    return answer


def merge(pieces: Iterable[Piece]) -> list[Piece]:
    """The same pieces, those that continue the one before them joined to it, and none that is empty."""
    merged: list[Piece] = []
    for piece in pieces:
        last = merged[-1] if merged else None
        if isinstance(piece, TextPiece):
            if isinstance(last, TextPiece) and last.kind == piece.kind:
                merged[-1] = TextPiece(last.kind, last.text + piece.text)
            elif piece.text:
                merged.append(piece)
        elif isinstance(last, CallPiece) and piece.name is None and last.index == piece.index:
            merged[-1] = CallPiece(last.index, last.name, last.arguments + piece.arguments)
        elif piece.name is not None or piece.arguments:
            merged.append(piece)
    return merged


@dataclass
class Block:
    """A stretch of content or reasoning, or one call.

    number: its place among the blocks. text: what it holds so far, for a call the JSON text of its arguments. name: the
    function of a call. id: as the API that it is written in names it.
    """

    kind: Literal["content", "reasoning", "call"]
    number: int
    text: str = ""
    name: str = ""
    id: str = ""


# What happens to a block: it begins, more text comes (the third value), it is over.
Happening = tuple[Literal["begin", "more", "end"], Block, str]


class Blocks:
    """The blocks of an answer, as its pieces come."""

    def __init__(self) -> None:
        self.all: list[Block] = []
        self._current: Block | None = None
        self._call = -1  # index of the current call

    def push(self, pieces: Iterable[Piece]) -> Iterator[Happening]:
        for piece in pieces:
            kind = "call" if isinstance(piece, CallPiece) else piece.kind
            is_another_call = isinstance(piece, CallPiece) and piece.index != self._call
            if self._current is None or self._current.kind != kind or is_another_call:
                yield from self.end()
                yield self._begin(Block(kind, len(self.all)), piece)
            assert self._current is not None
            more = piece.arguments if isinstance(piece, CallPiece) else piece.text
            self._current.text += more
            if more:
                yield "more", self._current, more

    def end(self) -> Iterator[Happening]:
        """Ends the current block, if there is one."""
        block, self._current = self._current, None
        if block is not None:
            yield "end", block, ""

    def ensure_one(self) -> Iterator[Happening]:
        """Makes an empty block of content if there is none at all."""
        if not self.all:
            yield self._begin(Block("content", 0), None)

    def _begin(self, block: Block, piece: Piece | None) -> Happening:
        if isinstance(piece, CallPiece):
            block.name, self._call = piece.name or "", piece.index
        self.all.append(block)
        self._current = block
        return "begin", block, ""
