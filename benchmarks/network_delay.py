"""Compares lookahead and tensor parallelism on two ranks, by the latency of the network between them.

    python -m benchmarks.network_delay --model FOLDER --delays 0 50 200 1000

The latency is added to every collective (`parallel.delay_us`). Where the kernel has netem, a real delay can take its
place: join two network namespaces by a veth pair, run `tc qdisc add dev VETH root netem delay 200us` in each, and start
one rank in each with `parallel.exchange=gloo`. The command runs launch/bench.py; to resume a run that was stopped, give
the same --sweep folder again.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.shared.options import add_output, make_parser, parse
from benchmarks.shared.plots import COLOURS, MARKERS, make_axes
from benchmarks.shared.report import markdown_table, publish
from launch.sweep.records import Point, Run, latest

BENCH = Path(__file__).resolve().parents[1] / "launch/bench.py"
MODES = ("lp", "tp")


@dataclass(frozen=True)
class DelayMeasurement:
    """Medians over the rounds. ms_per_step: milliseconds in communication on the rank that spends the most."""

    mode: str
    method: str
    delay_us: float
    tokens_per_s: float
    collectives_per_step: float
    ms_per_step: float


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--model", default="demo/python-11m", help="checkpoint folder (default %(default)s)")
    parser.add_argument("--dtype", default="float32", help="format of the model (default %(default)s)")
    parser.add_argument(
        "--delays", type=float, nargs="+", default=[0, 50, 200, 1000], help="microseconds (default 0 50 200 1000)"
    )
    parser.add_argument("--decode", default="lookahead", help="decoding method (default %(default)s)")
    parser.add_argument("--limit", type=int, default=4, help="prompts of our own workload (default %(default)s)")
    parser.add_argument("--max-new-tokens", type=int, default=64, help="new tokens of each text (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each point (default %(default)s)")
    parser.add_argument("--sweep", type=Path, required=True, help="folder of the sweep; an existing one is resumed")
    add_output(parser)
    arguments = parse(parser)
    if any(delay < 0 for delay in arguments.delays):
        parser.error("--delays are microseconds, 0 for none")
    points, runs = sweep(arguments)
    measured = read_measurements(points, runs)
    alone = single_rank_speed(points, runs)
    body, figure = describe(measured, alone)
    publish(
        arguments.output,
        f"network_delay-{Path(arguments.model).name}-{arguments.dtype}",
        f"Lookahead and tensor parallelism by network latency: {Path(arguments.model).name}, {arguments.dtype}",
        body,
        {"measured": [vars(point) for point in measured], "single": alone},
        figure,
    )


def sweep(arguments: argparse.Namespace) -> tuple[list[Point], list[Run]]:
    """Runs the sweep and reads its points and their latest runs. Ends the program if there are no results."""
    delays = ",".join(f"{delay:g}" for delay in arguments.delays)
    command = [sys.executable, str(BENCH), "-m", f"model.path={Path(arguments.model).resolve()}"]
    command += [f"model.dtype={arguments.dtype}", f"decode={arguments.decode}", f"rounds={arguments.rounds}"]
    command += [f"parallel={','.join(MODES)}", "parallel.ranks=2", f"parallel.delay_us={delays}", "baselines=[]"]
    command += [f"workload.limit={arguments.limit}", f"workload.max_new_tokens={arguments.max_new_tokens}"]
    subprocess.run([*command, f"output={arguments.sweep.resolve()}"], check=False, stdout=subprocess.DEVNULL)
    try:
        points = [Point(**values) for values in json.loads((arguments.sweep / "points.json").read_text())]
        lines = (arguments.sweep / "runs.jsonl").read_text().splitlines()
    except OSError as error:
        raise SystemExit(f"the sweep has left no results in {arguments.sweep}: {error.strerror}") from None
    return points, latest([Run.from_dict(json.loads(line)) for line in lines])


def read_measurements(points: list[Point], runs: list[Run]) -> list[DelayMeasurement]:
    """The parallel points that were measured, sorted by mode and delay."""
    found = []
    for point in points:
        done = [run for run in runs if run.point == point.key and run.status == "done"]
        if point.mode in MODES and done:
            busiest = [max(rank.communication_s for rank in run.ranks) / run.steps for run in done]
            collectives = max(rank.num_collectives for rank in done[0].ranks) / done[0].steps
            delay_us, speed = point.settings["parallel"]["delay_us"], median(run.tokens_per_s for run in done)
            found.append(
                DelayMeasurement(point.mode, point.method, delay_us, speed, collectives, 1000 * median(busiest))
            )
    return sorted(found, key=lambda measured: (measured.mode, measured.delay_us))


def single_rank_speed(points: list[Point], runs: list[Run]) -> float | None:
    """Tokens per second of autoregressive decoding on one rank."""
    keys = {point.key for point in points if point.mode == "single" and point.engine == "runtime"}
    speeds = [run.tokens_per_s for run in runs if run.point in keys and run.status == "done"]
    return median(speeds) if speeds else None


def crossover(measured: list[DelayMeasurement]) -> tuple[float | None, str]:
    """The latency above which lp is faster than tp, and how it was found.

    Time per token grows linearly with the latency. So the crossover is interpolated between two measured latencies, or
    extrapolated from the last two if it lies beyond them.
    """
    times = {mode: {m.delay_us: 1 / m.tokens_per_s for m in measured if m.mode == mode} for mode in MODES}
    delays = sorted(set(times["lp"]) & set(times["tp"]))
    gaps = [times["tp"][delay] - times["lp"][delay] for delay in delays]  # above 0: lp is faster
    if not gaps:
        return None, "nothing was measured"
    tp_wins = [place for place, gap in enumerate(gaps) if gap <= 0]
    if not tp_wins:
        return None, "lp is faster at every measured latency"
    last = tp_wins[-1]
    if last + 1 < len(gaps):
        share = -gaps[last] / (gaps[last + 1] - gaps[last])
        return delays[last] + share * (delays[last + 1] - delays[last]), "interpolated"
    if len(gaps) > 1 and gaps[-1] > gaps[-2]:
        slope = (gaps[-1] - gaps[-2]) / (delays[-1] - delays[-2])
        return delays[-1] - gaps[-1] / slope, "extrapolated beyond what was measured"
    return None, "tp is faster at every measured latency"


def describe(measured: list[DelayMeasurement], alone: float | None) -> tuple[str, Any]:
    """The report's text and its plot."""
    by_place = {(m.mode, m.delay_us): m for m in measured}
    columns = ["latency, us", *(f"{mode}: {what}" for mode in MODES for what in ("tokens/s", "ms/step", "coll./step"))]
    rows = []
    for delay in sorted({m.delay_us for m in measured}):
        cells = [f"{delay:g}"]
        for mode in MODES:
            m = by_place.get((mode, delay))
            cells += _cells(m) if m else ["-"] * 3
        lp, tp = by_place.get(("lp", delay)), by_place.get(("tp", delay))
        rows.append([*cells, f"{lp.tokens_per_s / tp.tokens_per_s:.2f}" if lp and tp else "-"])
    latency, how = crossover(measured)
    found = f"Crossover at {latency:.0f} us ({how})." if latency is not None else f"No crossover: {how}."
    beside = "" if alone is None else f" One rank, autoregressive: {alone:.1f} tokens/s."
    note = f"Two ranks, {measured[0].method if measured else ''}. ms/step: time in communication, with waiting."
    body = "\n\n".join([f"{note} {found}{beside}", markdown_table([*columns, "lp / tp"], rows)])
    return body, plot(measured, alone, latency)


def _cells(measured: DelayMeasurement) -> list[str]:
    return [f"{measured.tokens_per_s:.1f}", f"{measured.ms_per_step:.2f}", f"{measured.collectives_per_step:.0f}"]


def plot(measured: list[DelayMeasurement], alone: float | None, latency: float | None) -> Any:
    """Tokens per second against latency. alone: the speed of one rank. latency: the crossover."""
    figure, (axes,) = make_axes()
    for mode, colour, marker in zip(MODES, COLOURS, MARKERS):
        shown = [m for m in measured if m.mode == mode]
        label = f"{mode}, 2 ranks"
        axes.plot(
            [m.delay_us for m in shown], [m.tokens_per_s for m in shown], color=colour, marker=marker, label=label
        )
    if alone is not None:
        axes.axhline(alone, color="#555555", linestyle=":", label="autoregressive, 1 rank")
    if latency is not None:
        axes.axvline(latency, color="#000000", linewidth=0.8, linestyle="--", label=f"crossover, {latency:.0f} µs")
    axes.set_xscale("symlog", linthresh=50)
    axes.set_xlabel("latency added to every collective, µs")
    axes.set_ylabel("tokens per second")
    axes.set_ylim(bottom=0)
    axes.legend()
    return figure


if __name__ == "__main__":
    main()
