"""How a rank waits for others, and finds out which are still there.

A waiting rank spins, then lends its core to others, then naps (`wait_for`). When ranks meet, each waits at a Store for
the others' keys (`await_keys`). While they work together on one host, a rank that waits looks at the others' processes
(`Peers`). When a collective of torch.distributed has failed, the survivors call the roll (`find_missing_ranks`).
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

import psutil
from torch.distributed import Store

from parallel.comm.base import IsOver
from parallel.comm.threads import start_thread
from parallel.errors import EpochOver, RankLost, name_ranks

NUM_SPINS = 500  # some tens of microseconds: ranks that finish a step together meet within that time
YIELD_S = 0.002  # up to here the core is only lent to others: a nap would cost more than it saves
NAP_SHARE = 0.02  # a nap lasts this share of the wait so far, so it makes the wait longer by no more than that
LONGEST_NAP_S = 0.005
LIVENESS_S = 0.02  # how often a waiting rank looks whether what it waits for can still come
ROLL_CALL_S = 2.0
_ROLL_CALL_LOOK_S = 0.02
_STORE_ANSWER_S = 1.0
_KEY_LOOK_S = 0.002

_Result = TypeVar("_Result")


def await_keys(store: Store, keys: Sequence[str], timeout_s: float, is_over: IsOver) -> list[str]:
    """Waits until all keys are set; returns those that are still missing after `timeout_s` seconds. Raises EpochOver.

    It looks again and again, because a wait inside the Store could not be given up.
    """
    deadline = time.monotonic() + timeout_s
    missing = list(keys)
    while missing := [key for key in missing if not store.check([key])]:
        if is_over():
            raise EpochOver
        if time.monotonic() > deadline:
            break
        time.sleep(_KEY_LOOK_S)
    return missing


class Peers:
    """The processes of ranks on one host. A rank's place is its index in `ranks`.

    ranks: as the run counts them. pids: their processes, in the same order, or [] while they are not known. Raises
    RankLost if one has already ended.
    """

    def __init__(self, ranks: list[int], pids: list[int]) -> None:
        self._ranks = ranks
        self._processes: list[psutil.Process] = []
        for place, pid in enumerate(pids):
            try:
                self._processes.append(psutil.Process(pid))
            except psutil.NoSuchProcess:
                raise self._lost(place, _ended(pid)) from None

    def check_present(
        self,
        has_left: Callable[[int], bool],
        is_awaited: Callable[[int], bool],
        cause: Callable[[int], int] = lambda place: place,
    ) -> None:
        """Raises RankLost if a rank will never send what this one waits for: it has left, or its process has ended.

        has_left, is_awaited: say of the rank at a place whether it has left, and whether this one still waits for it.
        cause: the place of the rank whose loss made the rank at a place go, which is the one to name. A rank whose
        process has ended before it left comes first: others may have left because they noticed that.
        """
        for place in sorted(range(len(self._processes)), key=has_left):
            # `is_awaited` comes last, because what a rank sent before it went is still valid.
            if self._why_gone(place, has_left) and is_awaited(place):
                first = cause(place)
                raise self._lost(first, self._why_gone(first, has_left) or "another rank has waited for it in vain")

    def _why_gone(self, place: int, has_left: Callable[[int], bool]) -> str | None:
        return "it has left the run" if has_left(place) else _why_gone(self._processes[place])

    def late(self, places: list[int], timeout_s: float) -> RankLost:
        """Makes the error that says that the ranks at these places did not arrive in time."""
        processes = [self._processes[place] for place in places] if self._processes else []
        states = ", ".join(f"pid {process.pid} is {_state(process)}" for process in processes) or "not yet connected"
        ranks = tuple(self._ranks[place] for place in places)
        return RankLost(
            f"{name_ranks(ranks)} did not arrive within {timeout_s:g} s ({states}). If a step may take that long, "
            "raise parallel.timeout_s; otherwise see that rank's own output and start the run again.",
            ranks,
        )

    def _lost(self, place: int, reason: str) -> RankLost:
        rank = self._ranks[place]
        return RankLost(
            f"rank {rank} is lost: {reason}. See that rank's own output for the cause, then start the run again.",
            (rank,),
        )


def _why_gone(process: psutil.Process) -> str | None:
    """Says why this process will never send anything again; None if it may. A zombie has ended, too."""
    has_ended = _state(process) in ("gone", psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    return _ended(process.pid) if has_ended else None


def _ended(pid: int) -> str:
    return f"its process (pid {pid}) has ended"


def _state(process: psutil.Process) -> str:
    """Returns psutil's name for the state ("running", "stopped", ...), or "gone"."""
    try:
        return process.status() if process.is_running() else "gone"
    except psutil.NoSuchProcess:
        return "gone"


def find_missing_ranks(store: Store, rank: int, num_ranks: int) -> tuple[int, ...]:
    """Answers the roll call for this rank, waits up to ROLL_CALL_S for the others, returns those missing, ascending.

    Every survivor calls this after a collective has failed: the error of a broken connection names an address, not a
    rank, but the Store is a place that all ranks can still reach. A Store that does not answer counts as the loss of
    rank 0, which hosts it or runs beside its host.
    """
    present: set[int] = set()
    # In a thread, because calls to a Store whose host is stopped never return.
    start_thread(_call_roll, store, rank, num_ranks, present).join(ROLL_CALL_S + _STORE_ANSWER_S)
    seen = set(present)
    return tuple(sorted(set(range(num_ranks)) - seen)) if seen else (0,)


def _call_roll(store: Store, rank: int, num_ranks: int, present: set[int]) -> None:
    deadline = time.monotonic() + ROLL_CALL_S
    try:
        store.set(_roll_call_key(rank), "here")
        while len(present) < num_ranks and time.monotonic() < deadline:
            present.update(other for other in range(num_ranks) if store.check([_roll_call_key(other)]))
            time.sleep(_ROLL_CALL_LOOK_S)
    except RuntimeError:
        # The Store is gone, perhaps because its host has finished its own roll call. What was seen so far stands.
        return


def _roll_call_key(rank: int) -> str:
    return f"roll_call/{rank}"


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
