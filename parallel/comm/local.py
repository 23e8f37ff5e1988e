"""The exchange of a run with one rank: nothing is sent anywhere."""

from __future__ import annotations

import numpy as np

from parallel.comm.traffic import Traffic


class LocalExchange:
    """Answers each collective with this rank's own data; see `Exchange`."""

    def __init__(self) -> None:
        self.rank = 0
        self.num_ranks = 1
        self.traffic = Traffic()

    def all_gather(self, mine: np.ndarray, timeout_s: float | None = None) -> np.ndarray:
        self.traffic.num_collectives += 1
        return mine[None].copy()

    def broadcast(self, data: bytes | None) -> bytes:
        assert data is not None, "rank 0 must pass the bytes that it broadcasts"
        self.traffic.num_collectives += 1
        return data

    def close(self) -> None:
        """Nothing to leave."""
