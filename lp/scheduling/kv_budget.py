"""Which requests have room: whose keys and values fit into the memory for them at the same time.

With several replicas, each sequence needs room on one of them alone, its home. Every rank decides alike, as nothing but
the numbers of tokens, the order of arrival and who holds what already counts. Knows nothing of where keys and values
lie in a replica: a sequence that has no room waits, and its memory may be taken (lp/kv_cache/cache.py).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol, TypeVar

from lp.kv_cache.cache import PAGE, pages_of
from lp.request import DecodingMethod, Output, Request
from lp.runner.runner import HasReplicas, Runner
from lp.scheduling.placement import place_first, place_pinned
from lp.statistics import Statistics


class RequestTooLarge(ValueError):
    """A request needs more keys and values than there is memory for, even alone."""


class NeedsRoom(Protocol):
    """What takes room. num_slots: tokens of keys and values that its next step needs."""

    @property
    def num_slots(self) -> int: ...


T = TypeVar("T", bound=NeedsRoom)


def nobody(one: NeedsRoom) -> int | None:
    """The owner of a sequence of which nothing is held."""
    return None


@dataclass(frozen=True)
class KVBudget:
    """The memory for the keys and values of all sequences.

    num_pages: of each replica, the least that any rank has. num_replicas: that have room for different sequences.
    may_move: whether a sequence may go on at another replica, which computes it again.
    """

    num_pages: int = sys.maxsize
    num_replicas: int = 1
    may_move: bool = True

    @staticmethod
    def of(runner: Runner, num_pages: int) -> KVBudget:
        """The room of a runner whose ranks have so many pages each."""
        if isinstance(runner, HasReplicas) and runner.num_memories > 1:
            return KVBudget(num_pages, runner.num_memories, runner.may_move)
        return KVBudget(num_pages)

    def placed(self, running: Iterable[T], owner_of: Callable[[T], int | None] = nobody) -> list[tuple[T, int]]:
        """Those that may go on, and the replica on which each has room, in the order of their arrival.

        running: all that have not ended, in the order of their arrival; none begins before one that came earlier.
        owner_of: the replica that holds most of a sequence already; None if none holds anything.
        """
        asking = self.first(running) if self.num_replicas == 1 or self.may_move else list(running)
        if self.num_replicas == 1:
            return [(one, 0) for one in asking]
        place = place_first if self.may_move else place_pinned
        needs, owners = [pages_of(one.num_slots) for one in asking], [owner_of(one) for one in asking]
        homes = place(needs, owners, self.num_pages, self.num_replicas)
        return [(one, home) for one, home in zip(asking, homes, strict=False) if home is not None]

    def first(self, running: Iterable[T]) -> list[T]:
        """The first ones, as many as fit into all pages together, and always the first."""
        found: list[T] = []
        left = self.num_pages * self.num_replicas
        for one in running:
            left -= -(-one.num_slots // PAGE)
            if left < 0 and found:
                break
            found.append(one)
        return found

    def usage(self, lengths: Iterable[int]) -> float:
        """The share of all pages that sequences with so many tokens take, from 0 to 1."""
        return min(1.0, sum(map(pages_of, lengths)) / (self.num_pages * self.num_replicas))

    def describe(self) -> str:
        """How many tokens fit, in words."""
        num_tokens = self.num_pages * PAGE
        if self.num_replicas == 1:
            return f"keys and values: room for {num_tokens:,} tokens in all"
        return (
            f"keys and values: room for {num_tokens * self.num_replicas:,} tokens in all, "
            f"{num_tokens:,} on each of {self.num_replicas} replicas"
        )

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
