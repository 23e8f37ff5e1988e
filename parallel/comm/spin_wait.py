"""How a rank waits for another rank's write to shared memory: it spins, then yields its core, then naps.

Knows nothing of what is waited for.
"""

from __future__ import annotations

import os
import time

NUM_SPINS = 500  # some tens of microseconds: ranks that finish a step together meet here
YIELD_S = 0.002  # up to here the core is only lent to others: a nap would cost more than it saves
NAP_SHARE = 0.05  # a nap is as long as this share of the wait so far, so it adds at most that much to it
LONGEST_NAP_S = 0.005
LIVENESS_S = 0.02  # how often a wait is the occasion to look whether there is anything left to wait for


class SpinWait:
    """One wait; call `pause` each time that the awaited write has not been seen."""

    def __init__(self) -> None:
        self._num_pauses = 0
        self._begin = 0.0

    def pause(self) -> float:
        """Gives time away, more as the wait grows. Returns the seconds waited so far, 0 while spinning."""
        self._num_pauses += 1
        if self._num_pauses < NUM_SPINS:
            return 0.0
        now = time.monotonic()
        if self._num_pauses == NUM_SPINS:
            self._begin = now
        waited = now - self._begin
        if waited < YIELD_S:
            os.sched_yield()
        else:
            time.sleep(min(waited * NAP_SHARE, LONGEST_NAP_S))
        return waited
