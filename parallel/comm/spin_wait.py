"""How a rank waits for another: it spins, then lends its core to others, then naps.

Knows nothing of what is awaited.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from typing import TypeVar

NUM_SPINS = 500  # some tens of microseconds: ranks that finish a step together meet within that time
YIELD_S = 0.002  # up to here the core is only lent to others: a nap would cost more than it saves
NAP_SHARE = 0.05  # a nap lasts this share of the wait so far, so it makes the wait longer by no more than that
LONGEST_NAP_S = 0.005
LIVENESS_S = 0.02  # how often a waiting rank looks whether what it waits for can still come

_Result = TypeVar("_Result")


def wait_for(attempt: Callable[[], _Result | None], look: Callable[[], None], timeout_s: float = math.inf) -> _Result:
    """Calls `attempt` until it returns something true, and returns that. Raises TimeoutError after `timeout_s` seconds.

    look: called every LIVENESS_S seconds; raises if the wait is in vain.
    """
    for _ in range(NUM_SPINS):
        if result := attempt():
            return result
    begin, next_look = time.monotonic(), LIVENESS_S
    while not (result := attempt()):
        waited = time.monotonic() - begin
        _pause(waited)
        if waited > next_look:
            look()
            next_look = waited + LIVENESS_S
        if waited > timeout_s:
            raise TimeoutError
    return result


def _pause(waited: float) -> None:
    """Leaves the core to others, for longer if this rank has waited longer (`waited` seconds so far)."""
    if waited < YIELD_S:
        os.sched_yield()
    else:
        time.sleep(min(waited * NAP_SHARE, LONGEST_NAP_S))
