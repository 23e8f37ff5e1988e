"""The wait loop: it returns as soon as there is something, looks at intervals, and ends when the time is over."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from parallel.comm.peers import LIVENESS_S, NUM_SPINS, wait_for


class RankGone(Exception):
    """What a look raises in these tests."""


def true_after(seconds: float) -> Callable[[], bool]:
    end = time.monotonic() + seconds
    return lambda: time.monotonic() >= end


def never_true() -> None:
    return None


def no_look() -> None:
    raise AssertionError("a wait that was over at once looked")


def test_what_is_there_is_returned_at_once():
    attempts = []
    assert wait_for(lambda: attempts.append(1) or "message", no_look) == "message"
    assert len(attempts) == 1


@pytest.mark.parametrize("num_failures", [1, NUM_SPINS - 1, NUM_SPINS, NUM_SPINS + 1])
def test_the_first_true_result_is_returned_and_nothing_is_attempted_after_it(num_failures: int):
    results = iter([None] * num_failures + ["message", "another message"])
    assert wait_for(lambda: next(results), lambda: None) == "message"
    assert list(results) == ["another message"]


def test_a_long_wait_looks_at_intervals():
    looks = []
    assert wait_for(true_after(10 * LIVENESS_S), lambda: looks.append(1))
    assert 1 <= len(looks) <= 10  # fewer than ten on a machine that is busy elsewhere


def test_a_wait_that_takes_too_long_raises_timeout_error():
    for timeout_s in (LIVENESS_S / 10, 5 * LIVENESS_S):
        begin = time.monotonic()
        with pytest.raises(TimeoutError):
            wait_for(never_true, lambda: None, timeout_s)
        assert time.monotonic() - begin > timeout_s


def test_what_a_look_raises_ends_the_wait():
    def look() -> None:
        raise RankGone

    with pytest.raises(RankGone):
        wait_for(never_true, look)
