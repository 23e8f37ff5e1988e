"""From recorded steps to the speed that several devices would have: pure arithmetic.

A step takes as long as its slowest part, and what its communication is charged. What every rank does for itself (plans,
partition, verification) is counted once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from benchmarks.projections.network import Charges, Network
from benchmarks.projections.virtual_ranks import Recording


class Case(NamedTuple):
    """mode: single, lp or tp. method: the name of its settings."""

    mode: str
    ranks: int
    method: str


@dataclass(frozen=True)
class Phase:
    """Some steps: seconds of their slowest parts, rows of their largest parts, communication."""

    steps: int = 0
    compute_s: float = 0.0
    rows: int = 0
    charges: Charges = field(default_factory=Charges)

    def __add__(self, other: Phase) -> Phase:
        return Phase(
            self.steps + other.steps,
            self.compute_s + other.compute_s,
            self.rows + other.rows,
            self.charges + other.charges,
        )


@dataclass(frozen=True)
class Projection:
    """All texts of a case.

    prompts: the first step of each text, which reads the prompt. decoding: the others. rest_s: seconds of what every
    rank does for itself.
    """

    case: Case
    tokens: int
    prompts: Phase
    decoding: Phase
    rest_s: float

    @property
    def tokens_per_step(self) -> float:
        return self.tokens / (self.prompts + self.decoding).steps

    def tokens_per_s(self, network: Network) -> float:
        """The prompts' reading included."""
        both = self.prompts + self.decoding
        return self.tokens / (both.compute_s + self.rest_s + network.seconds(both.charges))


def project(case: Case, texts: Iterable[Sequence[Recording]]) -> Projection:
    """texts: of each, its recordings, which have the same steps. Each part takes the median of its times."""
    tokens, rest_s = 0, 0.0
    prompts, decoding = Phase(), Phase()
    for recordings in texts:
        seconds = np.median([[step.seconds for step in recording.steps] for recording in recordings], axis=0)
        slowest = seconds.max(axis=1).tolist()
        phases = [Phase(1, s, step.rows, step.charges) for s, step in zip(slowest, recordings[0].steps, strict=True)]
        prompts += phases[0]
        decoding = sum(phases[1:], decoding)
        rest_s += float(np.median([recording.rest_s for recording in recordings]))
        tokens += len(recordings[0].new_tokens)
    return Projection(case, tokens, prompts, decoding, rest_s)


def fastest(
    projections: Iterable[Projection], mode: str, network: Network, methods: Sequence[str] | None = None
) -> dict[int, Projection]:
    """The best method of a mode, by the number of devices; with one device, of `single`. methods: None is any."""
    best: dict[int, Projection] = {}
    for one in projections:
        if one.case.mode in ("single", mode) and (methods is None or one.case.method in methods):
            ranks = one.case.ranks
            if ranks not in best or one.tokens_per_s(network) > best[ranks].tokens_per_s(network):
                best[ranks] = one
    return dict(sorted(best.items()))
