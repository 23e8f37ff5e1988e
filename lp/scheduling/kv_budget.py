"""Which requests have room: whose keys and values fit into the memory for them at the same time.

Every rank decides alike, as nothing but the numbers of tokens and the order of arrival counts. A sequence that has no
room waits, and its memory may be taken (lp/kv_cache/cache.py).
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol, TypeVar

from lp.kv_cache.cache import PAGE, pages_of
from lp.request import DecodingMethod, Output, Request
from lp.statistics import Statistics


class RequestTooLarge(ValueError):
    """A request needs more keys and values than there is memory for, even alone."""


class NeedsRoom(Protocol):
    """What takes room. num_slots: tokens of keys and values that its next step needs."""

    @property
    def num_slots(self) -> int: ...


T = TypeVar("T", bound=NeedsRoom)


@dataclass(frozen=True)
class KVBudget:
    """The memory for the keys and values of all sequences.

    num_pages: the least that any rank has.
    """

    num_pages: int = sys.maxsize

    def first(self, running: Iterable[T]) -> list[T]:
        """The first ones, as many as fit into all pages together, and always the first.

        running: all that have not ended, in the order of their arrival; none begins before one that came earlier.
        """
        found: list[T] = []
        left = self.num_pages
        for one in running:
            left -= pages_of(one.num_slots)
            if left < 0 and found:
                break
            found.append(one)
        return found

    def usage(self, lengths: Iterable[int]) -> float:
        """The share of all pages that sequences with so many tokens take, from 0 to 1."""
        return min(1.0, sum(map(pages_of, lengths)) / self.num_pages)

    def describe(self) -> str:
        """How many tokens fit, in words."""
        return f"keys and values: room for {self.num_pages * PAGE:,} tokens in all"

    def most_new_tokens(self, prompt_length: int, decode: DecodingMethod, has_grammar: bool = False) -> int:
        """The most tokens that a request can generate alone; less than 1 if its prompt does not fit."""
        return self.num_pages * PAGE - decode.most_rows(has_grammar) + 1 - prompt_length

    def check(self, prompt_length: int, max_new_tokens: int, decode: DecodingMethod, has_grammar: bool = False) -> None:
        """Raises RequestTooLarge for a request that can never fit."""
        most = self.most_new_tokens(prompt_length, decode, has_grammar)
        if max_new_tokens <= most:
            return
        rows = decode.most_rows(has_grammar)
        remedy = f"ask for at most {most} new tokens" if most > 0 else "shorten the prompt"
        raise RequestTooLarge(
            f"a prompt of {prompt_length} tokens and max_new_tokens={max_new_tokens} need more keys and values than "
            f"there is memory for: model.kv_memory holds {self.num_pages * PAGE} tokens, {rows} of them for "
            f"the rows of a step; {remedy}, or raise model.kv_memory"
        )

    def refusal(self, request: Request) -> Output | None:
        """The end of a request that can never fit, with the reason as its text; None for any other."""
        assert request.stopping.max_new_tokens is not None
        try:
            has_grammar = request.grammar is not None
            self.check(len(request.prompt), request.stopping.max_new_tokens, request.decode, has_grammar)
        except RequestTooLarge as error:
            return Output(request.id, [], str(error), None, "no_room", Statistics(prompt_tokens=len(request.prompt)))
        return None
