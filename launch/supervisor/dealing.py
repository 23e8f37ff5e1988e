"""Whether ranks share their steps or each serves requests of its own, and which rank serves which request then.

With few requests, ranks that share every step make each of them faster. With many, each rank has enough rows for
itself, and shared steps would only make ranks wait for one another and plan what others compute. Knows nothing of how
ranks are reached.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from lp.request import Request
from parallel.degrees import Mode

# Requests for each rank from which on ranks do not share steps.
MANY = 2
# Seconds with less than one request for each rank after which they share steps again.
CALM_S = 0.25
# Requests with so many equal first tokens go to the same rank if they can, and so many such beginnings are remembered.
SAME_TOKENS, MOST_BEGINNINGS = 128, 1024
NOWHERE: Mapping[int, int] = MappingProxyType({})


class Division:
    """Decides whether ranks share steps.

    mode: with dp they never do, with lp always; with auto that depends on how many requests run.
    """

    def __init__(self, mode: Mode):
        self._mode = mode
        self._is_wanted = mode is Mode.dp
        self._many_at = 0.0

    def is_wanted(self, num_running: int, num_ranks: int, now: float) -> bool:
        """Whether each of the ranks is to serve requests of its own. now: seconds, which never decrease."""
        if self._mode is not Mode.auto:
            return self._is_wanted
        if num_running >= num_ranks:
            self._many_at = now
            self._is_wanted |= num_running >= MANY * num_ranks
        elif now - self._many_at >= CALM_S:
            self._is_wanted = False
        return self._is_wanted


@dataclass
class Load:
    """What a rank serves: ids of requests, in the order of their arrival; and how many tokens the prompts have that it
    may still have to compute.
    """

    request_ids: list[str] = field(default_factory=list)
    num_uncomputed: int = 0

    def __len__(self) -> int:
        return len(self.request_ids)

    def add(self, request_id: str, num_uncomputed: int) -> None:
        self.request_ids.append(request_id)
        self.num_uncomputed += num_uncomputed


class Dealer:
    """Deals requests out to ranks that each serve their own."""

    def __init__(self) -> None:
        # Which ranks have served requests of an owner that begin with the same tokens.
        self._served: OrderedDict[tuple[str | None, tuple[int, ...]], set[int]] = OrderedDict()

    def choose(
        self, request: Request, loads: Mapping[int, Load], cached: Mapping[int, int] = NOWHERE, share: int = 0
    ) -> int:
        """The rank for a request: the one that holds the most keys and values of it, or that has served another one of
        the same owner with the same first tokens, if that leaves the ranks even; else the one with the fewest requests,
        and of several the one with the least to compute.

        cached: how many of the request's tokens have keys and values on a rank. share: a rank with fewer requests than
        this counts as even, as others are about to be dealt out as well.
        """
        served = self._served_alike(request)
        burden = {rank: (len(load), load.num_uncomputed) for rank, load in loads.items()}
        fewest = min(loads, key=burden.__getitem__)
        known = [
            rank
            for rank, load in loads.items()
            if (cached.get(rank) or rank in served)
            and (len(load) < share or _is_even(len(load) + 1, len(loads[fewest])))
        ]
        chosen = min(known, key=lambda rank: (-cached.get(rank, 0), burden[rank]), default=fewest)
        served.add(chosen)
        return chosen

    def _served_alike(self, request: Request) -> set[int]:
        """The ranks that have served requests which begin alike; the caller adds the next one."""
        if len(request.prompt) < SAME_TOKENS:
            return set()
        beginning = request.owner, tuple(request.prompt[:SAME_TOKENS])
        served = self._served.setdefault(beginning, set())
        self._served.move_to_end(beginning)
        if len(self._served) > MOST_BEGINNINGS:
            self._served.popitem(last=False)
        return served


def _is_even(most: int, least: int) -> bool:
    """Whether ranks with so many and so few requests are even enough."""
    return most - least <= (2 if least else 1)
