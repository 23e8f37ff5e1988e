"""Elastic groups: how many ranks share each step, which group serves which request, and which requests move.

The N ranks of an epoch form N/s groups of size s. The ranks of a group share every tree, as in lookahead parallelism,
and groups know nothing of each other. With fewer requests than smaller groups, large groups make each request faster.
With a request for each smaller group, a step without the rows of other requests is shorter than one that is shared.

Pure decisions: nothing here knows how ranks are reached, and no clock is read.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple

from lp.request import Request
from lp.step_cost import StepTimes
from parallel.mesh import Mode

# Seconds with less than one request for each group after which groups become larger again.
CALM_S = 0.25
# The part of the memory for keys and values that requests may need where groups are to become larger.
ROOMY = 0.75
# Requests with so many equal first tokens go to the same group if they can, and so many such beginnings are remembered.
SAME_TOKENS, MOST_BEGINNINGS = 128, 1024
NOWHERE: Mapping[int, int] = MappingProxyType({})
# Where step times are not known, each row counts as one second, whatever else is in the step.
BY_ROWS = StepTimes((1, 2), (1.0, 2.0))
# A text that goes on is expected to go on for as many tokens as it has had, and for no fewer than this.
LEAST_LEFT = 16


def sizes(num_ranks: int) -> list[int]:
    """The sizes that groups of so many ranks may have: each is the largest proper divisor of the one before."""
    found = [num_ranks]
    while (size := found[-1]) > 1:
        found.append(next(size // factor for factor in range(2, size + 1) if size % factor == 0))
    return found


def fitting_size(wanted: int, num_ranks: int) -> int:
    """The largest size of groups of so many ranks that is not above the wanted one."""
    return next(size for size in sizes(num_ranks) if size <= max(1, wanted))


def sizes_of(mode: Mode, num_ranks: int) -> list[int]:
    """The sizes of groups that a mode uses."""
    match mode:
        case Mode.dp:
            return [1]
        case Mode.auto:
            return sizes(num_ranks)
        case _:
            return [num_ranks]


@dataclass
class Load:
    """What a group serves: ids of requests, in the order of their arrival; and how many tokens the prompts have that it
    may still have to compute.
    """

    request_ids: list[str] = field(default_factory=list)
    num_uncomputed: int = 0

    def __len__(self) -> int:
        return len(self.request_ids)

    def add(self, request_id: str, num_uncomputed: int) -> None:
        self.request_ids.append(request_id)
        self.num_uncomputed += num_uncomputed


class Movable(NamedTuple):
    """A request that may move to another group, which gets its keys and values or computes them again.

    num_tokens: of its prompt and its answer. num_left: tokens that its answer is expected to get yet. has_begun:
    whether its prompt has been computed. copy_s: seconds that copying its keys and values takes of a group's steps;
    infinite if they are computed again.
    """

    request_id: str
    num_tokens: int
    num_left: int
    has_begun: bool
    copy_s: float = math.inf

    @staticmethod
    def of(request: Request, num_tokens: int) -> Movable:
        """num_tokens: of its answer so far."""
        most = request.stopping.max_new_tokens
        left = max(LEAST_LEFT, num_tokens)
        left = left if most is None else min(left, most - num_tokens)
        return Movable(request.id, len(request.prompt) + num_tokens, left, has_begun=num_tokens > 0)


class Move(NamedTuple):
    """A request that one group hands to another; groups are named by their leaders."""

    request_id: str
    source: int
    target: int


class ElasticGroups:
    """The size of the groups and who serves what. Groups are named by their leaders.

    mode: with lp all ranks share every step, with dp none; with auto that depends on the requests.
    """

    def __init__(self, mode: Mode):
        self.mode = mode
        self._num_ranks = self._size = 0
        self._busy_at = 0.0
        # Which groups have served requests of an owner that begin with the same tokens.
        self._served: OrderedDict[tuple[str | None, tuple[int, ...]], set[int]] = OrderedDict()

    def group_size(self, num_requests: int, num_ranks: int, now: float, memory: float = 0.0) -> int:
        """How many ranks are to share their steps.

        now: seconds, which never decrease. memory: the keys and values of all requests, as a part of those that one
        rank has room for; a group has room for no more than one of its ranks.
        """
        if self.mode is not Mode.auto:
            return 1 if self.mode is Mode.dp else num_ranks
        if num_ranks != self._num_ranks:  # ranks were lost or have come
            is_whole = self._size == self._num_ranks
            self._size = num_ranks if is_whole else fitting_size(self._size, num_ranks)
            self._num_ranks = num_ranks
        if num_requests >= num_ranks // self._size:
            self._busy_at = now
        smaller = [size for size in sizes(num_ranks) if size < self._size]
        while smaller and (num_requests >= num_ranks // smaller[0] or memory > num_ranks // self._size):
            self._size, self._busy_at = smaller.pop(0), now
        if now - self._busy_at >= CALM_S:
            for size in reversed(sizes(num_ranks)):
                is_roomy = memory <= ROOMY * (num_ranks // size)
                if size > self._size and num_requests < num_ranks // self._size and is_roomy:
                    self._size = size
        return self._size

    def assign(
        self, request: Request, loads: Mapping[int, Load], cached: Mapping[int, int] = NOWHERE, share: int = 0
    ) -> int:
        """The group for a request: the one that holds the most keys and values of it, or that has served another one of
        the same owner with the same first tokens, if that leaves the groups even; else the one with the fewest
        requests, and of several the one with the least to compute.

        cached: how many of the request's tokens have keys and values in a group. share: a group with fewer requests
        than this counts as even, as others are about to be assigned as well.
        """
        served = self._find_served_alike(request)
        burden = {group: (len(load), load.num_uncomputed) for group, load in loads.items()}
        fewest = min(loads, key=burden.__getitem__)
        known = [
            group
            for group, load in loads.items()
            if (cached.get(group) or group in served)
            and (len(load) < share or _is_even(len(load) + 1, len(loads[fewest])))
        ]
        chosen = min(known, key=lambda group: (-cached.get(group, 0), burden[group]), default=fewest)
        served.add(chosen)
        return chosen

    def _find_served_alike(self, request: Request) -> set[int]:
        """The groups that have served requests which begin alike; the caller adds the next one."""
        if len(request.prompt) < SAME_TOKENS:
            return set()
        beginning = request.owner, tuple(request.prompt[:SAME_TOKENS])
        served = self._served.setdefault(beginning, set())
        self._served.move_to_end(beginning)
        if len(self._served) > MOST_BEGINNINGS:
            self._served.popitem(last=False)
        return served

    def moves(self, loads: Mapping[int, Load], movable: Iterable[Movable], times: StepTimes = BY_ROWS) -> list[Move]:
        """The moves that are worth what they cost, always from the group with the most requests to that with the
        fewest.

        movable: the requests that may move. times: of the steps of a group.
        """
        by_id = {one.request_id: one for one in movable}
        numbers = {group: len(load) for group, load in loads.items()}
        left = {group: [by_id[name] for name in load.request_ids if name in by_id] for group, load in loads.items()}
        found: list[Move] = []
        while True:
            source, target = max(numbers, key=numbers.__getitem__), min(numbers, key=numbers.__getitem__)
            move = best_move(left[source], numbers[source], numbers[target], times)
            if move is None:
                return found
            found.append(Move(move.request_id, source, target))
            left[source].remove(move)
            numbers[source] -= 1
            numbers[target] += 1


def _is_even(most: int, least: int) -> bool:
    """Whether groups with so many and so few requests are even enough."""
    return most - least <= (2 if least else 1)


def best_move(movable: Iterable[Movable], most: int, least: int, times: StepTimes = BY_ROWS) -> Movable | None:
    """The request whose move saves all clients together the most time; None if none saves any.

    movable: requests of the group that serves `most` requests; they would move to one that serves `least`.
    """
    found = max(movable, key=lambda one: _saved_s(one, most, least, times), default=None)
    return found if found and most > least + 1 and _saved_s(found, most, least, times) > 0 else None


def _saved_s(one: Movable, most: int, least: int, times: StepTimes) -> float:
    """Seconds by which all requests of the two groups end earlier, added up, if this one moves."""
    token_s = _token_s(most, times) + _token_s(least, times) - _token_s(most - 1, times) - _token_s(least + 1, times)
    # Those beside a prompt wait for it: in the new group, and no longer in the old one if it is still to be computed.
    num_waiting = least + 1 - (0 if one.has_begun else most)
    return one.num_left * token_s - num_waiting * min(times.at(one.num_tokens), one.copy_s)


def _token_s(num_requests: int, times: StepTimes) -> float:
    """Seconds that so many requests of a group wait for a token each, added up."""
    return num_requests * (times.at(num_requests) + times.of_sequences(num_requests)) if num_requests else 0.0
