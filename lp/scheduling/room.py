"""Which requests have room: whose keys and values fit into the memory for them at the same time.

Every rank decides alike, as nothing but the numbers of tokens and the order of arrival counts. Knows nothing of where
keys and values lie: a sequence that has no room waits, and its memory may be taken (lp/model/kv/memory.py).
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol, TypeVar

from lp.methods import DecodeSettings, most_rows
from lp.model.kv_cache import PAGE, pages_of
from lp.request import Progress, Request
from lp.statistics import Statistics


class NoRoom(ValueError):
    """A request needs more keys and values than there is memory for, even alone."""


class NeedsRoom(Protocol):
    """What takes room. num_slots: tokens of keys and values that its next step needs."""

    @property
    def num_slots(self) -> int: ...


T = TypeVar("T", bound=NeedsRoom)


@dataclass(frozen=True)
class Room:
    """Room for the keys and values of all sequences. num_pages: the least that any rank has."""

    num_pages: int = sys.maxsize

    def fitting(self, running: Iterable[T]) -> list[T]:
        """Those that may go on: the first ones, as many as fit together, and always the first.

        running: all that have not ended, in the order of their arrival. So none waits for one that came after it.
        """
        found: list[T] = []
        left = self.num_pages
        for one in running:
            left -= pages_of(one.num_slots)
            if left < 0 and found:
                break
            found.append(one)
        return found

    def most_new_tokens(self, prompt_length: int, decode: DecodeSettings) -> int:
        """The most tokens that a request can generate alone; less than 1 if its prompt does not fit."""
        return self.num_pages * PAGE - most_rows(decode) + 1 - prompt_length

    def check(self, prompt_length: int, max_new_tokens: int, decode: DecodeSettings) -> None:
        """Raises NoRoom for a request that can never fit."""
        most = self.most_new_tokens(prompt_length, decode)
        if max_new_tokens <= most:
            return
        mend = f"ask for at most {most} new tokens" if most > 0 else "shorten the prompt"
        raise NoRoom(
            f"a prompt of {prompt_length} tokens and max_new_tokens={max_new_tokens} need more keys and values than "
            f"there is memory for: model.kv_memory holds {self.num_pages * PAGE} tokens, {most_rows(decode)} of them "
            f"for the rows of a step; {mend}, or raise model.kv_memory"
        )

    def refusal(self, request: Request) -> Progress | None:
        """The end of a request that can never fit, with the reason as its text; None for any other."""
        assert request.stopping.max_new_tokens is not None
        try:
            self.check(len(request.prompt), request.stopping.max_new_tokens, request.decode)
        except NoRoom as error:
            return Progress(request.id, [], str(error), None, "no_room", Statistics(prompt_tokens=len(request.prompt)))
        return None
