"""What a chat asks of whatever answers it."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Protocol

from launch.conversation.options import Options
from lp.text.chat_template import Message


class AnswerError(Exception):
    """There is no answer, or no more of it; the message is for the user. is_too_long: the context is full."""

    def __init__(self, message: str, is_too_long: bool = False):
        super().__init__(message)
        self.is_too_long = is_too_long


@dataclass(frozen=True)
class Figures:
    """What an answer has cost so far. tokens_per_s: from the start of the first step to the last token."""

    tokens: int
    tokens_per_step: float
    tokens_per_s: float


@dataclass(frozen=True)
class Part:
    """What one step, or one message of a server, adds to an answer.

    figures: None if a server does not say them. finish_reason: None until the last part.
    """

    text: str
    num_tokens: int
    figures: Figures | None
    finish_reason: str | None


class ChatModel(Protocol):
    """Answers conversations, one at a time. where: what it is and where it runs, for the greeting."""

    where: str

    def check(self, options: Options) -> None:
        """Raises ValueError naming the first setting that is out of range, as far as that is known beforehand."""
        ...

    def answer(self, messages: Sequence[Message], options: Options) -> Generator[Part, None, None]:
        """The parts of an answer as they come. Closing the iterator ends the answer. Raises AnswerError."""
        ...
