"""Which request is worth moving from the rank that serves the most to the one that serves the fewest.

A request that moves is computed again from its first token, beside those of its new rank. Knows nothing of how ranks
are reached.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sized
from typing import NamedTuple

from lp.request import Request
from lp.step_cost import StepTimes

# Where step times are not known, each row counts as one second, whatever else is in the step.
BY_ROWS = StepTimes((1, 2), (1.0, 2.0))
# A text that goes on is expected to go on for as many tokens as it has had, and for no fewer than this.
LEAST_LEFT = 16


class Movable(NamedTuple):
    """A request that may move.

    num_tokens: those of its prompt and its answer, which another rank computes again. num_left: those that its answer
    is expected to get yet. has_begun: whether its rank has computed its prompt.
    """

    request_id: str
    num_tokens: int
    num_left: int
    has_begun: bool

    @staticmethod
    def of(request: Request, num_tokens: int) -> Movable:
        """num_tokens: of its answer so far."""
        most = request.stopping.max_new_tokens
        left = max(LEAST_LEFT, num_tokens)
        left = left if most is None else min(left, most - num_tokens)
        return Movable(request.id, len(request.prompt) + num_tokens, left, has_begun=num_tokens > 0)


def ends(loads: Mapping[int, Sized]) -> tuple[int, int]:
    """The ranks with the most and with the fewest requests."""
    most, least = (pick(loads, key=lambda rank: len(loads[rank])) for pick in (max, min))
    return most, least


def best_move(movable: Iterable[Movable], most: int, least: int, times: StepTimes = BY_ROWS) -> Movable | None:
    """The request whose move saves all clients together the most time; None if none saves any.

    movable: requests of the rank that serves `most` requests; they would move to one that serves `least`. times: of
    steps that a rank computes for itself.
    """
    found = max(movable, key=lambda one: _saved_s(one, most, least, times), default=None)
    return found if found and most > least + 1 and _saved_s(found, most, least, times) > 0 else None


def _saved_s(one: Movable, most: int, least: int, times: StepTimes) -> float:
    """Seconds by which all requests of the two ranks end earlier, added up, if this one moves."""
    token_s = _token_s(most, times) + _token_s(least, times) - _token_s(most - 1, times) - _token_s(least + 1, times)
    # Those beside a prompt wait for it: on the new rank, and no longer on the old one if it is still to be computed.
    num_waiting = least + 1 - (0 if one.has_begun else most)
    return one.num_left * token_s - num_waiting * times.at(one.num_tokens)


def _token_s(num_requests: int, times: StepTimes) -> float:
    """Seconds that so many requests of a rank wait for a token each, added up."""
    return num_requests * (times.at(num_requests) + times.of_sequences(num_requests)) if num_requests else 0.0
