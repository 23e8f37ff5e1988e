"""The parts of an answer: pieces of it, as a stream gives them, and all of it."""

from __future__ import annotations

import secrets
import string
from collections.abc import Iterable
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
