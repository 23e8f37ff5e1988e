"""The time of a step by its rows, of two models, in two number formats, on one and two threads, with the floor."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path

from benchmarks.real.child import run_benchmark
from benchmarks.real.settings import RealModelSettings
from benchmarks.real.tasks import Figures, Task
from benchmarks.shared.report import markdown_table

PART = "step curve"
ROWS = "1,2,4,8,16,32,64,128"
ROUNDS = 5
DTYPES = ("float32", "bfloat16")


def tasks(settings: RealModelSettings) -> list[Task]:
    return [
        Task(PART, f"{model.name}, {dtype}, threads {threads}", asked, partial(measure, model, asked))
        for model in (settings.model, settings.small)
        for dtype in DTYPES
        for threads in sorted({1, settings.threads})
        for asked in [{"dtype": dtype, "threads": threads, "rows": ROWS, "compile": settings.compile}]
    ]


def measure(model: Path, asked: Mapping[str, str | int]) -> Figures:
    options = ["--model", str(model), "--dtype", str(asked["dtype"]), "--threads", str(asked["threads"])]
    options += ["--rows", str(asked["rows"]), "--rounds", str(ROUNDS), "--no-parts", "--device", "cpu"]
    options += ["--compile", "off" if asked["compile"] == "off" else "on"]
    found = run_benchmark("step_time", *options)
    return {name: found[name] for name in ("bytes_per_s", "flops_per_s", "points", "notes")}


def describe(kept: Mapping[str, Figures]) -> str:
    """kept: figures by the measurements' names."""
    rows = []
    for name, figures in kept.items():
        for point in figures["points"]:
            share = point["floor_s"] / point["median_s"]
            rows.append(
                (name, point["rows"], f"{1e3 * point['floor_s']:.1f}", f"{1e3 * point['median_s']:.1f}", f"{share:.0%}")
            )
    rates = [
        f"{name}: memory {figures['bytes_per_s'] / 1e9:.1f} GB/s, products {figures['flops_per_s'] / 1e9:,.0f} GFLOP/s"
        for name, figures in kept.items()
    ]
    table = markdown_table(["model", "rows", "floor, ms", "step, ms", "share of the floor"], rows)
    return f"On 256 cached tokens. {'; '.join(rates)}.\n\n{table}"
