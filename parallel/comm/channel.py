"""What a runner and a serving loop say to each other across ranks, in exactly one collective a step.

The step's all-gather carries, ahead of each rank's payload, rank 0's word that commands follow, and a fingerprint of
the rank's state. Commands (new, cancelled and finished requests, shutdown) travel as JSON between steps, and only when
announced. Knows nothing of what payloads and commands mean.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from parallel.comm.base import Exchange
from parallel.comm.traffic import Traffic

HEADER = 2
"""Integers ahead of the payload: commands follow (0 or 1), fingerprint."""


class StateDiverged(RuntimeError):
    """The ranks no longer hold the same state; `rank` is the first that differs from rank 0, `step` counts from 1."""

    def __init__(self, message: str, rank: int = -1, step: int = -1) -> None:
        super().__init__(message)
        self.rank = rank
        self.step = step


class Channel:
    """One rank's end of an exchange. Rank 0 leads: it alone announces and issues commands.

    `commands_due`: after a step, whether rank 0 has announced commands, so that every rank must call `share` next.
    `has_shared`: whether there were any commands yet. `num_steps`: steps of which all ranks have heard. `traffic`: of
    the steps' exchanges; commands are not counted.
    """

    def __init__(self, exchange: Exchange) -> None:
        self.commands_due = False
        self.has_shared = False
        self.num_steps = 0
        self.traffic = Traffic()
        self._exchange = exchange
        self._announced = False

    @property
    def rank(self) -> int:
        return self._exchange.rank

    @property
    def num_ranks(self) -> int:
        return self._exchange.num_ranks

    @property
    def is_leader(self) -> bool:
        return self._exchange.rank == 0

    def announce(self, pending: bool) -> None:
        """On rank 0: says with the next step's exchange whether commands follow after that step."""
        assert self.is_leader, "only rank 0 announces commands"
        self._announced = pending

    def gather(self, payload: np.ndarray, fingerprint: int = 0) -> np.ndarray:
        """Gives every rank the payloads of all ranks and notes in `commands_due` what rank 0 announced.

        payload: int32 [n], n equal on all ranks. fingerprint: a checksum of this rank's state, of which the low 32
        bits count; 0 on all ranks switches the comparison off. Returns int32 [num_ranks, n]. Raises StateDiverged, on
        all ranks alike, if the fingerprints differ, and RankLost.
        """
        message = np.concatenate([self.header(fingerprint), payload])
        with self.traffic.counted(message.nbytes):
            gathered = self._exchange.all_gather(message)
        self.heard(gathered[:, :HEADER])
        return gathered[:, HEADER:]

    def header(self, fingerprint: int = 0) -> np.ndarray:
        """int32 [HEADER]: what this rank says ahead of a step's payload."""
        bits = np.array([fingerprint & 0xFFFFFFFF], dtype=np.uint32).view(np.int32)
        return np.concatenate([[np.int32(self._announced)], bits])

    def heard(self, headers: np.ndarray) -> None:
        """Takes in what all ranks said of a step, int32 [num_ranks, HEADER]. Raises StateDiverged, on all alike."""
        self.num_steps += 1
        self.commands_due = bool(headers[0, 0])
        self._check_fingerprints(headers[:, 1])

    def share(self, commands: list[dict[str, Any]] | None) -> list[dict[str, Any]]:
        """Gives every rank the commands of rank 0, which must be JSON values; the other ranks pass None.

        Clears what was announced. Raises RankLost.
        """
        assert (commands is not None) == self.is_leader, "rank 0 and no other passes the commands"
        data = None if commands is None else json.dumps(commands, separators=(",", ":")).encode()
        received = self._exchange.broadcast(data)
        self.has_shared = True
        self.commands_due = self._announced = False
        return json.loads(received)

    def tell(self, value: Any) -> Any:
        """Gives every rank rank 0's value, which must be a JSON value, before any command; others' are ignored.

        Raises RankLost.
        """
        return json.loads(self._exchange.broadcast(json.dumps(value).encode() if self.is_leader else None))

    def compare(self, mine: np.ndarray) -> np.ndarray:
        """Gives every rank the integers of all, before any step or between two: int32 [n] to int32 [num_ranks, n].

        Raises RankLost.
        """
        return self._exchange.all_gather(mine)

    def close(self) -> None:
        """Leaves the exchange; may be called twice."""
        self._exchange.close()

    def _check_fingerprints(self, fingerprints: np.ndarray) -> None:
        differing = np.flatnonzero(fingerprints != fingerprints[0])
        if differing.size == 0:
            return
        rank = int(differing[0])
        mine, leader = (int(value) & 0xFFFFFFFF for value in (fingerprints[rank], fingerprints[0]))
        raise StateDiverged(
            f"in step {self.num_steps} the state of rank {rank} differs from that of rank 0 (fingerprint "
            f"{mine:#010x}, not {leader:#010x}). This is a bug in lookahead-parallel: please report it, "
            "with the command that you ran.",
            rank,
            self.num_steps,
        )
