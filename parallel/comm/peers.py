"""The processes of the other ranks of a host: are they still there?"""

from __future__ import annotations

import psutil

from parallel.comm.base import RankLost, name_ranks


class Peers:
    """ranks: as the run counts them. pids: of their processes, in the same order. Raises RankLost if one has ended."""

    def __init__(self, ranks: list[int], pids: list[int]) -> None:
        self.ranks = ranks
        self._processes: list[psutil.Process] = []
        for place, pid in enumerate(pids):
            try:
                self._processes.append(psutil.Process(pid))
            except psutil.NoSuchProcess:
                raise self.lost(place, f"its process (pid {pid}) has ended") from None

    @property
    def known(self) -> range:
        """Places of those whose processes are known."""
        return range(len(self._processes))

    def why_gone(self, place: int) -> str | None:
        """Why this process will never say anything again, or None if it may. A zombie has ended, too."""
        process = self._processes[place]
        has_ended = _state(process) in ("gone", psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
        return f"its process (pid {process.pid}) has ended" if has_ended else None

    def lost(self, place: int, reason: str) -> RankLost:
        rank = self.ranks[place]
        return RankLost(
            f"rank {rank} is lost: {reason}. See that rank's own output for the cause, then start the run again.",
            (rank,),
        )

    def late(self, places: list[int], timeout_s: float) -> RankLost:
        """These ranks did not arrive in time."""
        processes = [self._processes[place] for place in places] if self._processes else []
        states = ", ".join(f"pid {process.pid} is {_state(process)}" for process in processes) or "not yet connected"
        ranks = tuple(self.ranks[place] for place in places)
        return RankLost(
            f"{name_ranks(ranks)} did not arrive within {timeout_s:g} s ({states}). If a step may "
            "take that long, raise parallel.timeout_s; else see that rank's own output and start the run again.",
            ranks,
        )


def _state(process: psutil.Process) -> str:
    """psutil's name for the state ("running", "stopped", ...), or "gone"."""
    try:
        return process.status() if process.is_running() else "gone"
    except psutil.NoSuchProcess:
        return "gone"
