"""Records of requests made by hand."""

from __future__ import annotations

from benchmarks.load.client import RequestRecord
from benchmarks.load.figures import Cell


def record(*times: float, tokens: int | None = None, sent: float = 0.0, error: str | None = None, phase: str = "all"):
    """A request that was sent at `sent` and got text at these times, with a token in each unless `tokens` says more."""
    ended = times[-1] if times else sent
    return RequestRecord(phase, sent, sent, list(times), ended, tokens or len(times), 10, error)


def cell(system: str, records: list[RequestRecord], round: int = 1, **more) -> Cell:
    return Cell(system, more.pop("scenario", "closed loop, 2 streams"), more.pop("kind", "streams"),
                more.pop("load", 2), round, records, more.pop("counters", {}))  # fmt: skip
