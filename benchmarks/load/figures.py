"""Makes figures of what clients saw: latencies and their percentiles, throughput, goodput, pauses."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import numpy as np

from benchmarks.load.client import RequestRecord
from benchmarks.load.counters import add, derive

PERCENTILES = (50, 90, 95, 99)
# Kinds of latency by their names in reports; all in milliseconds.
LATENCIES = {
    "time to first token": lambda one: [one.first_token_s],
    "time per output token": lambda one: [] if one.per_token_s is None else [one.per_token_s],
    "gaps between pieces of text": lambda one: one.gaps_s,
    "longest pause of a stream": lambda one: [max(one.gaps_s)] if one.gaps_s else [],
    "end-to-end latency": lambda one: [one.latency_s],
}


@dataclass(frozen=True)
class Slo:
    """What a request must meet to count for goodput, in milliseconds."""

    first_token_ms: float
    per_token_ms: float

    def is_met(self, record: RequestRecord) -> bool:
        per_token_s = record.per_token_s or 0.0
        return 1000 * record.first_token_s <= self.first_token_ms and 1000 * per_token_s <= self.per_token_ms


@dataclass
class Cell:
    """One system in one scenario of one round.

    counters: what the server's counters grew by; empty if it has none. client_cpu_s: processor time of the clients.
    """

    system: str
    scenario: str
    kind: str
    load: float | None
    round: int
    records: list[RequestRecord]
    counters: dict[str, float] = field(default_factory=dict)
    client_cpu_s: float = 0.0

    @property
    def whole(self) -> list[RequestRecord]:
        """The records of the requests that did not fail."""
        return [record for record in self.records if record.error is None]

    @property
    def seconds(self) -> float:
        """Seconds that passed from the first request to the end of the last."""
        return max(one.ended_at for one in self.records) - min(one.due_at for one in self.records)

    @property
    def tokens_per_s(self) -> float:
        return sum(one.num_tokens or 0 for one in self.whole) / self.seconds

    @property
    def requests_per_s(self) -> float:
        return len(self.whole) / self.seconds

    def goodput(self, slo: Slo) -> float:
        """Requests a second that meet the SLO."""
        return sum(map(slo.is_met, self.whole)) / self.seconds

    @property
    def pauses(self) -> list[float]:
        """Returns, for a pause scenario, the stream's longest pause once the prompt had been sent, in ordinary steps.

        An ordinary step is the median gap before. A try whose stream had ended before the prompt came has no figure.
        """
        phases = dict.fromkeys(one.phase for one in self.records)
        pairs = [[one for one in self.records if one.phase == phase] for phase in phases]
        return [pause for pair in pairs if (pause := longest_pause(*pair)) is not None]

    def to_json(self) -> dict[str, Any]:
        return {
            "system": self.system,
            "scenario": self.scenario,
            "load": self.load,
            "round": self.round,
            "seconds": self.seconds,
            "client_cpu_s": self.client_cpu_s,
            "counters": self.counters,
            "requests": [record_to_json(record) for record in self.records],
        }


def record_to_json(record: RequestRecord) -> dict[str, Any]:
    """One request; latencies in seconds."""
    figures: dict[str, Any] = {"phase": record.phase, "error": record.error}
    if record.error is None:
        figures |= {"prompt_tokens": record.prompt_tokens, "tokens": record.num_tokens}
        figures |= {"first_token_s": record.first_token_s, "per_token_s": record.per_token_s}
        figures |= {"longest_pause_s": max(record.gaps_s, default=None), "latency_s": record.latency_s}
    return figures


def longest_pause(stream: RequestRecord, intruder: RequestRecord) -> float | None:
    """The longest gap of a stream that ended after the intruder was sent, in median gaps of the time before."""
    if stream.error or intruder.error:
        return None
    before = [gap for gap, end in zip(stream.gaps_s, stream.times[1:]) if end <= intruder.sent_at]
    after = [gap for gap, end in zip(stream.gaps_s, stream.times[1:]) if end > intruder.sent_at]
    return max(after) / median(before) if before and after else None


def summarise(values: Sequence[float]) -> dict[str, float]:
    """Mean and percentiles (linear between neighbours); empty if there is no value."""
    if not values:
        return {}
    points = np.percentile(values, PERCENTILES).tolist()
    return {"mean": float(np.mean(values)), **{f"p{number}": point for number, point in zip(PERCENTILES, points)}}


@dataclass
class Summary:
    """One system in one scenario, over all rounds.

    Rates are medians of the rounds. rounds: output tokens a second of each round. latencies_ms: by name, mean and
    percentiles over all requests (or gaps) of all rounds. phases_ms: mean latency of the requests of each phase.
    counted: ratios of counters. pauses: see Cell. errors: how often each was seen.
    """

    system: str
    scenario: str
    kind: str
    load: float | None
    rounds: dict[int, float]
    tokens_per_s: float
    requests_per_s: float
    goodput: float
    latencies_ms: dict[str, dict[str, float]]
    phases_ms: dict[str, float]
    counted: dict[str, float]
    pauses: list[float]
    num_requests: int
    errors: dict[str, int]


def summarise_cells(cells: Sequence[Cell], slo: Slo) -> Summary:
    """cells: of one system and scenario, one for each round."""
    whole = [record for cell in cells for record in cell.whole]
    counters: dict[str, float] = {}
    for cell in cells:
        add(counters, cell.counters)
    phases = dict.fromkeys(record.phase for record in whole)
    return Summary(
        cells[0].system,
        cells[0].scenario,
        cells[0].kind,
        cells[0].load,
        {cell.round: cell.tokens_per_s for cell in cells},
        median(cell.tokens_per_s for cell in cells),
        median(cell.requests_per_s for cell in cells),
        median(cell.goodput(slo) for cell in cells),
        {name: _summarise_ms(value for one in whole for value in read(one)) for name, read in LATENCIES.items()},
        {phase: _mean_ms(one.latency_s for one in whole if one.phase == phase) for phase in phases},
        derive(counters),
        [pause for cell in cells for pause in cell.pauses] if cells[0].kind == "pause" else [],
        sum(len(cell.records) for cell in cells),
        dict(Counter(record.error for cell in cells for record in cell.records if record.error)),
    )


def summarise_all(cells: Sequence[Cell], slo: Slo) -> list[Summary]:
    """A summary for each scenario and system, in the order in which they were first measured."""
    groups: dict[tuple[str, str], list[Cell]] = {}
    for scenario in dict.fromkeys(cell.scenario for cell in cells):
        for system in dict.fromkeys(cell.system for cell in cells):
            found = [cell for cell in cells if (cell.scenario, cell.system) == (scenario, system)]
            if found:
                groups[scenario, system] = found
    return [summarise_cells(group, slo) for group in groups.values()]


def _summarise_ms(values_s: Iterable[float]) -> dict[str, float]:
    return summarise([1000 * value for value in values_s])


def _mean_ms(values_s: Iterable[float]) -> float:
    return 1000 * float(np.mean(list(values_s)))
