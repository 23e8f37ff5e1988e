"""Groups the pieces of an answer into blocks, as the APIs want them that give each its own beginning and end."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from launch.server.tools.pieces import CallPiece, Piece


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
