"""Computes from recorded steps how fast several devices would be.

A step takes as long as its slowest part and the charged communication. Work that every rank repeats (planning,
partition, verification) is counted once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from benchmarks.projections.network import Charges, Network
from benchmarks.projections.virtual_ranks import RecordedText


class ProjectionCase(NamedTuple):
    """What is projected. mode: single, lp or tp. method: the name of the decoding method's settings."""

    mode: str
    ranks: int
    method: str


@dataclass(frozen=True)
class StepTotals:
    """Several steps added up: seconds of their slowest parts, rows of their largest parts, communication."""

    steps: int = 0
    compute_s: float = 0.0
    rows: int = 0
    charges: Charges = field(default_factory=Charges)

    def __add__(self, other: StepTotals) -> StepTotals:
        return StepTotals(
            self.steps + other.steps,
            self.compute_s + other.compute_s,
            self.rows + other.rows,
            self.charges + other.charges,
        )


@dataclass(frozen=True)
class Projection:
    """All texts of a case.

    prompts: the first step of each text, which is the prefill. decoding: all other steps. rest_s: seconds of the work
    that every rank repeats.
    """

    case: ProjectionCase
    tokens: int
    prompts: StepTotals
    decoding: StepTotals
    rest_s: float

    @property
    def tokens_per_step(self) -> float:
        return self.tokens / (self.prompts + self.decoding).steps

    def tokens_per_s(self, network: Network) -> float:
        """Projected tokens per second on this network, the prefill included."""
        both = self.prompts + self.decoding
        return self.tokens / (both.compute_s + self.rest_s + network.seconds(both.charges))


def project(case: ProjectionCase, texts: Iterable[Sequence[RecordedText]]) -> Projection:
    """The projection of a case. The time of each part is the median over the recordings of a text.

    texts: for each text its recordings, which all have the same steps.
    """
    tokens, rest_s = 0, 0.0
    prompts, decoding = StepTotals(), StepTotals()
    for recordings in texts:
        seconds = np.median([[step.seconds for step in recording.steps] for recording in recordings], axis=0)
        slowest = seconds.max(axis=1).tolist()
        phases = [
            StepTotals(1, s, step.rows, step.charges) for s, step in zip(slowest, recordings[0].steps, strict=True)
        ]
        prompts += phases[0]
        decoding = sum(phases[1:], decoding)
        rest_s += float(np.median([recording.rest_s for recording in recordings]))
        tokens += len(recordings[0].new_tokens)
    return Projection(case, tokens, prompts, decoding, rest_s)


def fastest(
    projections: Iterable[Projection], mode: str, network: Network, methods: Sequence[str] | None = None
) -> dict[int, Projection]:
    """The fastest projection of a mode, by the number of devices; for one device it is that of `single`.

    methods: those to choose from; None allows all.
    """
    best: dict[int, Projection] = {}
    for one in projections:
        if one.case.mode in ("single", mode) and (methods is None or one.case.method in methods):
            ranks = one.case.ranks
            if ranks not in best or one.tokens_per_s(network) > best[ranks].tokens_per_s(network):
                best[ranks] = one
    return dict(sorted(best.items()))
