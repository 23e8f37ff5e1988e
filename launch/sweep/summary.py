"""Turns measurements into figures of each point: medians over rounds, and ratios that are taken within one round."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from launch.sweep.records import Point, RankFigures, Run

# Settings that must be equal in a point and the point it is compared with.
SAME_TASK = ("model", "workload", "sampling", "ignore_eos", "cores_per_rank")


@dataclass(frozen=True)
class Spread:
    """The spread of a figure over the rounds."""

    median: float
    least: float
    most: float

    @staticmethod
    def of(values: Sequence[float]) -> Spread | None:
        return Spread(median(values), min(values), max(values)) if values else None


@dataclass
class Summary:
    """The figures of one point. They are None or empty where there is nothing measured or nothing to compare with.

    differing: the settings that tell the points of the sweep apart. over_autoregressive, over_generate: ratio of tokens
    per second to those of autoregressive decoding on one rank, and of transformers' generate. communication_share:
    share of the time. Figures of ranks are those of the rank with the most. accepted_lengths: share of the steps by the
    number of tokens that they yielded. same_texts: number of texts that are equal to those of transformers' generate;
    when sampling, or without that baseline, to those of autoregressive decoding.
    """

    key: str
    name: str
    engine: str
    mode: str
    ranks: int
    method: str
    differing: dict[str, Any]
    rounds: int = 0
    error: str | None = None
    tokens_per_s: Spread | None = None
    over_autoregressive: Spread | None = None
    over_generate: Spread | None = None
    ttft_s: float | None = None
    tokens_per_step: float | None = None
    rows_per_step: float | None = None
    communication_share: float | None = None
    communication_ms_per_step: float | None = None
    collectives_per_step: float | None = None
    bytes_per_step: float | None = None
    weight_bytes: int | None = None
    cache_bytes: int | None = None
    peak_bytes: int | None = None
    accepted_lengths: dict[int, float] = field(default_factory=dict)
    same_texts: int | None = None
    num_texts: int = 0
    concurrency: int = 1
    oversubscribed: bool = False

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


def summarise(points: Sequence[Point], runs: Sequence[Run]) -> list[Summary]:
    """Returns a summary of each point, in the order of the points."""
    by_round = {(run.point, run.round): run for run in runs if run.status == "done"}
    differing = differing_settings(points)
    return [_summary(point, points, runs, by_round, differing[point.key]) for point in points]


def differing_settings(points: Sequence[Point]) -> dict[str, dict[str, Any]]:
    """Returns for each point the settings, by dotted key, that differ among the points of this project's runtime."""
    flat = {point.key: _flatten(point.settings) for point in points if point.engine == "runtime"}
    keys = sorted({key for settings in flat.values() for key in settings})
    varying = [key for key in keys if len({repr(settings.get(key)) for settings in flat.values()}) > 1]
    return {
        point.key: {key: flat[point.key][key] for key in varying if key in flat.get(point.key, {})} for point in points
    }


def _flatten(settings: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in settings.items():
        flat |= _flatten(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return flat


def _summary(
    point: Point,
    points: Sequence[Point],
    runs: Sequence[Run],
    by_round: dict[tuple[str, int], Run],
    differing: dict[str, Any],
) -> Summary:
    done = [run for run in runs if run.point == point.key and run.status == "done"]
    errors = [run.error for run in runs if run.point == point.key and run.status == "failed"]
    summary = Summary(point.key, point.name, point.engine, point.mode, point.ranks, point.method, differing)
    summary.rounds, summary.error = len(done), errors[-1] if errors else None
    summary.concurrency = point.settings["concurrency"]
    if done:
        _add_figures(summary, done)
        alone = _counterpart(point, points, _is_autoregressive)
        generate = _counterpart(point, points, lambda other: other.engine == "generate")
        summary.over_autoregressive = _ratio(done, alone, by_round)
        summary.over_generate = _ratio(done, generate, by_round)
        reference = alone if point.settings["sampling"]["temperature"] else generate or alone
        summary.same_texts = _same_texts(done[-1], reference, by_round)
    return summary


def _add_figures(summary: Summary, done: Sequence[Run]) -> None:
    last, steps = done[-1], done[-1].steps
    summary.oversubscribed = any(run.oversubscribed for run in done)
    summary.tokens_per_s = Spread.of([run.tokens_per_s for run in done])
    summary.ttft_s = median([text.ttft_s for run in done for text in run.texts])
    summary.tokens_per_step = last.tokens_per_step
    summary.rows_per_step = last.rows / steps
    summary.num_texts = len(last.texts)
    summary.communication_share = median([_most(run, lambda rank: rank.communication_s) / run.seconds for run in done])
    summary.communication_ms_per_step = median(
        [1000 * _most(run, lambda rank: rank.communication_s) / run.steps for run in done]
    )
    summary.collectives_per_step = _most(last, lambda rank: rank.num_collectives) / steps
    summary.bytes_per_step = _most(last, lambda rank: rank.bytes_sent) / steps
    summary.weight_bytes = int(_most(last, lambda rank: rank.weight_bytes))
    summary.cache_bytes = int(_most(last, lambda rank: rank.cache_bytes))
    summary.peak_bytes = int(_most(last, lambda rank: rank.peak_bytes))
    num_steps = sum(last.accepted_lengths.values())
    summary.accepted_lengths = {int(n): count / num_steps for n, count in last.accepted_lengths.items()}


def _most(run: Run, figure: Callable[[RankFigures], float]) -> float:
    return max(figure(rank) for rank in run.ranks)


def _is_autoregressive(point: Point) -> bool:
    settings = point.settings
    return point.engine == "runtime" and point.mode == "single" and settings["decode"]["method"] == "autoregressive"


def _counterpart(point: Point, points: Sequence[Point], is_it: Callable[[Point], bool]) -> str | None:
    """Returns the key of the point with the same task that this one is compared with."""
    for other in points:
        if is_it(other) and all(other.settings[key] == point.settings[key] for key in SAME_TASK):
            return other.key
    return None


def _ratio(done: Sequence[Run], base: str | None, by_round: dict[tuple[str, int], Run]) -> Spread | None:
    """Returns the ratio of tokens per second to those of the point `base`, taken within each round."""
    pairs = [(run, by_round.get((base, run.round))) for run in done if base is not None]
    return Spread.of([run.tokens_per_s / other.tokens_per_s for run, other in pairs if other])


def _same_texts(run: Run, reference: str | None, by_round: dict[tuple[str, int], Run]) -> int | None:
    found = [other for (key, _), other in by_round.items() if key == reference]
    if not found:
        return None
    expected = {text.id: text.digest for text in found[-1].texts}
    return sum(expected.get(text.id) == text.digest for text in run.texts)
