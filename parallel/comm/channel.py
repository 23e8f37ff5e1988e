"""What the runners and the serving loops of all ranks say to each other, in exactly one collective per step.

Ahead of each rank's rows, the step's collective carries two integers: whether commands follow, which only rank 0
decides, and a fingerprint of the rank's state. Commands (new, cancelled and finished requests, shutdown) travel between
steps, and only when announced. Knows nothing of what rows and commands mean.

Shapes: N ranks, I integers of one rank, H integers ahead of its rows (HEADER).
"""

from __future__ import annotations

import json
from typing import Any, NoReturn

import numpy as np

from parallel.comm.base import Exchange, Messages, Traffic
from parallel.comm.rows import Table
from parallel.errors import StateDiverged


class Channel:
    """One rank's end of an exchange. Rank 0 is the leader: it alone announces and issues commands.

    rank, num_ranks: those of the exchange. is_leader: whether this is rank 0. commands_due: whether rank 0 announced
    commands in the last step, so that every rank must call `share` next. has_shared: whether any commands were shared
    yet. num_steps: steps whose headers all ranks have seen. traffic: what the steps' exchanges cost; commands are not
    counted. messages: the exchange's, for tensors between two ranks; None where nobody sends any.
    """

    def __init__(self, exchange: Exchange) -> None:
        self.rank = exchange.rank
        self.num_ranks = exchange.num_ranks
        self.is_leader = exchange.rank == 0
        self.commands_due = False
        self.has_shared = False
        self.num_steps = 0
        self.traffic = Traffic()
        self.messages: Messages | None = exchange.messages
        self._exchange = exchange
        self._announced = False

    def announce(self, pending: bool) -> None:
        """Lets the next step's exchange say whether commands follow that step. Only rank 0 calls this."""
        assert self.is_leader, "only rank 0 announces commands"
        self._announced = pending

    def gather_rows(
        self, own: list[np.ndarray], tables: list[Table], fingerprint: int = 0, ranks_per_replica: int = 1
    ) -> None:
        """Fills tables by the rows of all replicas and notes in `commands_due` what rank 0 announced.

        own, ranks_per_replica: see Exchange. fingerprint: a checksum of this rank's state, whose low 32 bits are
        compared; 0 on all ranks switches the comparison off. Raises RankLost, and StateDiverged on all ranks alike if
        the fingerprints differ.
        """
        of_exchange, traffic = self._exchange.traffic, self.traffic
        bytes_sent, seconds = of_exchange.bytes_sent, of_exchange.seconds
        headers = self._exchange.gather_rows(self.header(fingerprint), own, tables, ranks_per_replica)
        traffic.seconds += of_exchange.seconds - seconds
        traffic.bytes_sent += of_exchange.bytes_sent - bytes_sent
        traffic.num_collectives += 1
        self.heard(headers)

    def header(self, fingerprint: int = 0) -> tuple[int, int]:
        """Returns what this rank says ahead of a step's rows: H numbers that int32 holds."""
        bits = fingerprint & 0xFFFFFFFF
        return int(self._announced), bits - (1 << 32) if bits >> 31 else bits

    def heard(self, headers: np.ndarray) -> None:
        """Takes in the headers of all ranks for a step, int32 [N, H]. Raises StateDiverged, on all ranks alike."""
        self.num_steps += 1
        said = headers.tolist()
        self.commands_due, first = bool(said[0][0]), said[0][1]
        for _, fingerprint in said:
            if fingerprint != first:
                self._tell_difference(headers[:, 1])

    def share(self, commands: bytes | None) -> bytes:
        """Gives every rank the encoded commands of rank 0; the other ranks pass None.

        Clears the announcement. Raises RankLost.
        """
        assert (commands is not None) == self.is_leader, "only rank 0 passes commands"
        received = self._exchange.broadcast(commands)
        self.has_shared = True
        self.commands_due = self._announced = False
        return received

    def broadcast(self, value: Any) -> Any:
        """Gives every rank the value of rank 0, a JSON value, before any command. Other ranks' values are ignored.

        Raises RankLost.
        """
        return json.loads(self._exchange.broadcast(json.dumps(value).encode() if self.is_leader else None))

    def collect(self, value: Any) -> list[Any]:
        """Gives every rank the JSON values of all ranks, before any step or between two. Raises RankLost."""
        data = json.dumps(value).encode()
        lengths = self.compare(np.array([len(data)], np.int32))[:, 0].tolist()
        padded = data.ljust(-(-max(lengths) // 4) * 4)
        gathered = self.compare(np.frombuffer(padded, np.int32))
        return [json.loads(row.tobytes()[:length]) for row, length in zip(gathered, lengths, strict=True)]

    def compare(self, mine: np.ndarray) -> np.ndarray:
        """Gives every rank the integers of all ranks, before any step or between two: int32 [I] to int32 [N, I].

        Raises RankLost.
        """
        return self._exchange.all_gather(mine)

    def least(self, value: int) -> int:
        """Gives every rank the least value of any rank, or the largest int32 if that is less. Raises RankLost."""
        return int(self.compare(np.array([min(value, np.iinfo(np.int32).max)], np.int32)).min())

    def close(self) -> None:
        """Leaves the exchange; may be called twice."""
        self._exchange.close()

    def _tell_difference(self, fingerprints: np.ndarray) -> NoReturn:
        rank = int(np.flatnonzero(fingerprints != fingerprints[0])[0])
        mine, leader = (int(value) & 0xFFFFFFFF for value in (fingerprints[rank], fingerprints[0]))
        raise StateDiverged(
            f"in step {self.num_steps} the state of rank {rank} differs from that of rank 0 (fingerprint "
            f"{mine:#010x}, not {leader:#010x}). This is a bug in lookahead-parallel: please report it together with "
            "the command that you ran.",
            rank,
            self.num_steps,
        )
