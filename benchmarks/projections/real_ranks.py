"""Measures real ranks on this machine, started and pinned as the sweep does it (launch/sweep/ranks.py)."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

import torch

from benchmarks.projections.projected_speed import ProjectionCase
from benchmarks.shared.report import progress
from launch.sweep.points import runtime_point
from launch.sweep.ranks import measure, usable_cores
from launch.sweep.records import Run
from launch.sweep.settings import BenchSettings
from lp.request import DecodingMethod
from parallel.mesh import Mode, ParallelSettings


def measure_all(
    cases: Iterable[ProjectionCase], methods: Mapping[str, DecodingMethod], settings: BenchSettings
) -> tuple[dict[ProjectionCase, float], list[str]]:
    """Tokens per second of each case, the prefill included, and a line for each case that failed.

    settings: shared by all cases; mode, ranks and method are replaced.
    """
    measured: dict[ProjectionCase, float] = {}
    failures: list[str] = []
    for case in progress(list(cases), "real ranks", unit="run"):
        run = measure_once(case, methods, settings)
        if run.error:
            failures.append(f"{case.mode} on {case.ranks} real ranks, {case.method}, failed: {run.error}")
            print(failures[-1], file=sys.stderr)
        else:
            measured[case] = run.tokens / sum(text.decode_s for text in run.texts)
    return measured, failures


def measure_once(case: ProjectionCase, methods: Mapping[str, DecodingMethod], settings: BenchSettings) -> Run:
    """One run of a case, or its failure. settings: see `measure_all`."""
    parallel = ParallelSettings(Mode(case.mode), ranks=case.ranks)
    point = runtime_point(replace(settings, decode=methods[case.method], parallel=parallel))
    with tempfile.TemporaryDirectory() as logs:
        return measure(point, 0, settings.point_timeout_s, Path(logs))


def room_for_ranks(device: str, threads: int) -> int:
    """How many ranks this machine can run at the same time, with a GPU or `threads` cores for each."""
    if device != "cpu" and torch.cuda.is_available():
        return torch.cuda.device_count()
    return len(usable_cores()) // threads
