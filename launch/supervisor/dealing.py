"""Whether ranks share their steps or each serves requests of its own, and which rank serves which request then.

With few requests, ranks that share every step make each of them faster. With many, each rank has enough rows for
itself, and shared steps would only make ranks wait for one another and plan what others compute. Knows nothing of how
ranks are reached.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sized

from lp.request import Request
from parallel.degrees import Mode

# Requests for each rank from which on ranks do not share steps.
MANY = 2
# Seconds with less than one request for each rank after which they share steps again.
CALM_S = 0.25
# Requests with so many equal first tokens go to the same rank if they can, and so many such beginnings are remembered.
SAME_TOKENS, MOST_BEGINNINGS = 128, 1024


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


class Dealer:
    """Deals requests out to ranks that each serve their own."""

    def __init__(self) -> None:
        # Which ranks have served requests of an owner that begin with the same tokens.
        self._served: OrderedDict[tuple[str | None, tuple[int, ...]], set[int]] = OrderedDict()

    def choose(self, request: Request, loads: Mapping[int, Sized]) -> int:
        """The rank for a request: the one with the fewest, or one that has served another request of the same owner
        with the same first tokens, as it may hold their keys and values, if that leaves the ranks even.

        loads: the requests of each rank.
        """
        served = self._served_alike(request)
        fewest = min(map(len, loads.values()))
        known = [rank for rank in loads if rank in served and not _differ(len(loads[rank]) + 1, fewest)]
        chosen = min(known or loads, key=lambda rank: len(loads[rank]))
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


def uneven(loads: Mapping[int, Sized]) -> tuple[int, int] | None:
    """The ranks with the most and with the fewest requests if one should move between them; None if none should."""
    most, least = (pick(loads, key=lambda rank: len(loads[rank])) for pick in (max, min))
    return (most, least) if _differ(len(loads[most]), len(loads[least])) else None


def _differ(most: int, least: int) -> bool:
    """Whether a request should move from a rank with so many to one with so few, which has to compute it again."""
    return most - least > (2 if least else 1)
