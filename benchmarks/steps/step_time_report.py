"""Shows step times in tables and a plot."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from matplotlib.figure import Figure

from benchmarks.projections.streams.curves import largest_part
from benchmarks.shared.exchange_timing import ExchangeCost
from benchmarks.shared.plots import COLOURS, MARKERS, make_axes
from benchmarks.shared.report import bullets, markdown_table
from benchmarks.steps.forward_parts import ForwardParts
from benchmarks.steps.host_work import ANSWERS, FORWARD, HostWork
from benchmarks.steps.step_curve import StepTimeSample
from benchmarks.steps.step_floor import StepFloor

# Numbers of rows whose time is compared with that of one row.
COMPARED = (16, 64, 128, 256)


@dataclass(frozen=True)
class SharedSteps:
    """Steps of which ranks compute a part each. rows: of whole steps. ranks: their numbers; empty shows nothing."""

    rows: list[int]
    ranks: list[int]
    exchange_s: float


@dataclass(frozen=True)
class StepTimeResults:
    """All that benchmarks.step_time measures.

    shape: the model described on one line. notes: what could not be measured, and why. splits, host, exchange: what a
    step is made of, as far as it was measured.
    """

    shape: str
    points: list[StepTimeSample]
    floor: StepFloor
    notes: list[str]
    shared: SharedSteps
    splits: list[ForwardParts] = field(default_factory=list)
    host: HostWork | None = None
    exchange: ExchangeCost | None = None

    @property
    def variants(self) -> list[str]:
        """The variants' names."""
        return list(dict.fromkeys(point.way for point in self.points))

    @property
    def cached(self) -> list[int]:
        """The numbers of cached tokens."""
        return list(dict.fromkeys(point.cached for point in self.points))

    def times(self, way: str, cached: int) -> dict[int, StepTimeSample]:
        """The samples of one variant, by their number of rows."""
        return {point.rows: point for point in self.points if (point.way, point.cached) == (way, cached)}

    def to_dict(self) -> dict[str, Any]:
        rates = self.floor.rates
        points = [
            {"way": p.way, "cached": p.cached, "rows": p.rows, "median_s": p.median_s, "middle_s": p.middle_s,
             "floor_s": self.floor.seconds(p.rows, p.cached)}
            for p in self.points
        ]  # fmt: skip
        return {
            "shape": self.shape,
            "bytes_per_s": rates.bytes_per_s,
            "flops_per_s": rates.flops_per_s,
            "points": points,
            "splits": [{**vars(split), "rest": split.rest} for split in self.splits],
            "host": self.host and vars(self.host),
            "exchange": self.exchange and vars(self.exchange),
            "notes": self.notes,
        }


def describe(results: StepTimeResults) -> str:
    rates = results.floor.rates
    parts = [
        f"{results.shape}. The floor is the longer of two times: reading the weights and the cached keys and values "
        f"once, at {rates.bytes_per_s / 1e9:.1f} GB/s, and doing the operations, at "
        f"{rates.flops_per_s / 1e9:,.0f} GFLOP/s. Both rates were measured in the same rounds as the steps; a model "
        "that fits the processor's caches can be faster than the floor. Each time is the median in milliseconds, in "
        "brackets the middle half of the readings. Share: the floor divided by the time.",
        *([bullets(results.notes)] if results.notes else []),
        *(describe_curve(results, cached) for cached in results.cached),
        describe_one_row(results),
    ]
    if results.shared.ranks:
        parts.append(describe_shared(results))
    if results.splits:
        parts.append(describe_splits(results))
    if results.host:
        parts.append(describe_host(results.host))
    if results.exchange:
        parts.append(
            f"Communication under lp: one exchange per step, {results.exchange.median_us:.0f} microseconds (median) "
            f"from the arrival of the last rank, after {results.exchange.work_ms:.1f} ms of work on each rank."
        )
    return "\n\n".join(parts)


def describe_curve(results: StepTimeResults, cached: int) -> str:
    """The time of a step by its rows, and the floor."""
    columns = ["rows", "floor", *(cell for way in results.variants for cell in (way, "share"))]
    curves = [results.times(way, cached) for way in results.variants]
    table = []
    for rows in curves[0]:
        floor_s = results.floor.seconds(rows, cached)
        cells = [str(rows), f"{1000 * floor_s:.2f}"]
        for curve in curves:
            low, high = curve[rows].middle_s
            cells += [
                f"{1000 * curve[rows].median_s:.2f} ({1000 * low:.2f}-{1000 * high:.2f})",
                f"{floor_s / curve[rows].median_s:.0%}",
            ]
        table.append(cells)
    return f"On {cached} cached tokens:\n\n{markdown_table(columns, table, num_text=0)}"


def describe_one_row(results: StepTimeResults) -> str:
    """The bandwidth that a step of one row reaches, and what more rows cost."""
    curves = [(way, cached, results.times(way, cached)) for way in results.variants for cached in results.cached]
    compared = [rows for rows in COMPARED if rows in curves[0][2]]
    table = []
    for way, cached, curve in curves:
        if 1 not in curve:
            return "One row was not measured."
        one = curve[1].median_s
        speed = results.floor.num_bytes(1, cached) / one
        share = speed / results.floor.rates.bytes_per_s
        more = [f"{curve[rows].median_s / one:.2f}" for rows in compared]
        table.append([way, cached, f"{1000 * one:.2f}", f"{speed / 1e9:.1f}", f"{share:.0%}", *more])
    columns = ["variant", "cached", "1 row, ms", "GB/s", "of bandwidth", *(f"{rows} rows / 1" for rows in compared)]
    return f"One row, and what more rows cost:\n\n{markdown_table(columns, table)}"


def describe_shared(results: StepTimeResults) -> str:
    """What ranks gain that compute a part of a step each."""
    shared, table = results.shared, []
    for way in results.variants:
        for cached in results.cached:
            curve = results.times(way, cached)
            for rows in shared.rows:
                whole_s = curve[rows].median_s
                cells = [way, cached, rows, f"{1000 * whole_s:.1f}"]
                for ranks in shared.ranks:
                    part = largest_part(rows, ranks)
                    seconds = curve[part].median_s + shared.exchange_s
                    cells += [part, f"{1000 * seconds:.1f}", f"{whole_s / seconds:.2f}x"]
                table.append(cells)
    columns = ["variant", "cached", "rows", "one rank, ms"]
    for ranks in shared.ranks:
        columns += [f"{ranks} ranks, rows", "ms", "speed"]
    return (
        "Steps that ranks share, each with a memory of its own: the time of the rank with the most rows, which also "
        f"computes accepted tokens that it lacks, and {1e6 * shared.exchange_s:g} us of an exchange:\n\n"
        f"{markdown_table(columns, table)}"
    )


def describe_splits(results: StepTimeResults) -> str:
    table = [
        [
            one.way,
            one.cached,
            one.rows,
            f"{1000 * one.whole:.2f}",
            *(_part(seconds, one.whole) for seconds in (one.attention, one.products, one.head, one.rest)),
        ]
        for one in results.splits
    ]
    columns = ["variant", "cached", "rows", "forward", "attention", "products", "head", "rest"]
    return (
        "Where a forward's time goes, in milliseconds. Each part is the least of a few readings "
        f"(benchmarks/steps/forward_parts.py explains them):\n\n{markdown_table(columns, table)}"
    )


def describe_host(host: HostWork) -> str:
    table = [[part, f"{1000 * seconds:.3f}", f"{seconds / host.step_s:.1%}"] for part, seconds in host.seconds.items()]
    return (
        f"A step of a real generation, {host.rows_per_step:.0f} rows and {host.tokens_per_step:.2f} tokens on average "
        f"over {host.steps} steps. Without {FORWARD} and {ANSWERS} (choosing tokens from logits and copying them to "
        f"the host), the host's work is {host.host_s / host.step_s:.1%} of it.\n\n"
        f"{markdown_table(['part', 'ms', 'share'], table)}"
    )


def _part(seconds: float, whole: float) -> str:
    return f"{1000 * seconds:.2f} ({seconds / whole:.0%})"


def plot(results: StepTimeResults) -> Figure:
    """A panel for each number of cached tokens, with a line for each variant and one for the floor."""
    figure, panels = make_axes(len(results.cached), width=3.2 + 3.2 * len(results.cached))
    for axes, cached in zip(panels, results.cached):
        for way, colour, marker in zip(results.variants, COLOURS, MARKERS):
            curve = results.times(way, cached)
            times = [1000 * point.median_s for point in curve.values()]
            axes.plot(list(curve), times, color=colour, marker=marker, label=way)
        sizes = list(results.times(results.variants[0], cached))
        floor = [1000 * results.floor.seconds(rows, cached) for rows in sizes]
        axes.plot(sizes, floor, color="#555555", linestyle=":", label="floor")
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_xticks(sizes, [str(rows) for rows in sizes])
        axes.set_xlabel(f"rows of a step, on {cached} cached tokens")
    panels[0].set_ylabel("milliseconds")
    panels[0].legend()
    return figure
