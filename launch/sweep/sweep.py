"""Runs a sweep: measures every point in every round, writes each measurement at once, and reports the comparison."""

from __future__ import annotations

import json
import logging
import signal
import sys
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path

from rich.console import Console
from torch.distributed.elastic.multiprocessing.api import SignalException
from tqdm import tqdm

from launch.data import workloads
from launch.sweep import ranks
from launch.sweep.points import make_points, schedule
from launch.sweep.ranks import describe_hardware
from launch.sweep.records import Point, Run, SweepFolder, latest
from launch.sweep.report import print_table, write_report
from launch.sweep.settings import BenchSettings, check_all
from launch.sweep.summary import summarise

log = logging.getLogger("lookahead")

# Measures a point once, given the point, the round, the seconds it may take, and the folder for the logs of its ranks.
Measure = Callable[[Point, int, float, Path], Run]


def run(spanned: Sequence[BenchSettings], measure: Measure = ranks.measure) -> int:
    """Runs a sweep. Returns the exit code: 0, 1 if a point failed, 130 if the sweep was interrupted.

    Raises ValueError for settings that cannot be used, and if results cannot be written.
    """
    check_all(spanned)
    for settings in spanned:
        workloads.load(settings.workload)
    shared = spanned[0]
    folder = SweepFolder(Path(shared.output or f"bench-results/{datetime.now():%Y-%m-%d_%H-%M-%S}"))
    points = make_points(spanned)
    folder.write_points(points)
    interrupted = _measure_all(points, shared, folder, measure)
    failed = _report(points, shared, folder)
    if interrupted:
        log.warning(
            "interrupted; what was measured is kept. To resume, give the same command with output=%s", folder.path
        )
        return 128 + signal.SIGINT
    return int(failed)


def _measure_all(points: Sequence[Point], shared: BenchSettings, folder: SweepFolder, measure: Measure) -> bool:
    """Measures what has not been measured yet. Returns whether it was interrupted."""
    done = {(run.point, run.round) for run in folder.runs() if run.status == "done"}
    open_points = list(schedule(points, shared.rounds, done))
    if done:
        log.info("%s holds %d measurements already; %d are left", folder.path, len(done), len(open_points))
    hardware = describe_hardware()
    try:
        with folder.writing(), tqdm(open_points, unit="run", file=sys.stderr, dynamic_ncols=True) as bar:
            for number, point in bar:
                bar.set_description(f"round {number + 1}: {point.name}")
                measured = measure(point, number, shared.point_timeout_s, folder.logs)
                measured.hardware = measured.hardware or hardware
                folder.append(measured)
                _say(bar, point, measured)
    except (KeyboardInterrupt, SignalException):
        return True
    return False


def _say(bar: tqdm, point: Point, measured: Run) -> None:
    if measured.status == "failed":
        bar.write(f"failed: {point.name}: {measured.error}", file=sys.stderr)
    else:
        bar.set_postfix_str(f"{measured.tokens_per_s:.0f} tokens/s")


def _report(points: Sequence[Point], shared: BenchSettings, folder: SweepFolder) -> bool:
    """Prints the tables and writes the report. Returns whether a point has failed."""
    wanted = {point.key for point in points}
    runs = [run for run in latest(folder.runs()) if run.point in wanted and run.round < shared.rounds]
    summaries = summarise(points, runs)
    print_table(summaries, Console())
    folder.write("summary.jsonl", "".join(json.dumps(summary.to_dict()) + "\n" for summary in summaries))
    with folder.writing():
        write_report(folder.path / "report.html", points, runs, summaries, shared.report_title)
    log.info("written to %s: report.html, summary.jsonl, runs.jsonl", folder.path)
    return any(run.status == "failed" for run in runs)
