"""Measures steps of a shape with random weights: times by rows, kernels, seconds of capture, memory, and the floor.

It is an item of benchmarks.gpu, which starts it. benchmarks.step_time measures the same times and takes them apart;
this one also counts what is launched and what graphs cost, and keeps what it has if a variant fails.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from benchmarks.projections.rank_cost import share_of
from benchmarks.shared.filled_cache import fill_cache
from benchmarks.shared.options import ascending_numbers
from benchmarks.shared.report import bullets, markdown_table
from benchmarks.shared.shapes import describe_shape
from benchmarks.steps.machine_rates import RateGauge, time_once
from benchmarks.steps.measured_model import make_measured
from benchmarks.steps.step_curve import StepTimeSample, make_tree, measure_curve
from benchmarks.steps.step_floor import StepFloor
from benchmarks.steps.variants import ModelVariant, make_variant
from lp.model.causal import CausalModel
from lp.model.compilation import CompileMode
from lp.model.kernels import AttentionKind
from lp.model.memory import num_weight_bytes
from lp.model.quantization.parameter import quantized_parameters
from lp.model.quantization.quantize import Weights

MILLI = 1e3


@dataclass
class VariantFigures:
    """What one variant has shown.

    ready_s: seconds to make the variant. first_s: seconds of the first step with each number of rows, in which a graph
    may be captured. points: one for each number of cached tokens and rows. memory_gb: the most that was allocated.
    """

    name: str
    ready_s: float
    first_s: dict[int, float] = field(default_factory=dict)
    points: list[dict[str, Any]] = field(default_factory=list)
    memory_gb: float | None = None


def run() -> None:
    arguments = parse_arguments()
    positions = arguments.cached[-1] + arguments.rows[-1]
    cached = sum(arguments.cached) + len(arguments.cached) * arguments.rows[-1]
    found: list[VariantFigures] = []
    notes: list[str] = []
    with make_measured(
        arguments.config,
        arguments.dtype,
        arguments.device,
        positions,
        2 * cached,
        len(arguments.compile),
        Weights(arguments.weights),
    ) as (checkpoint, folder):
        model = checkpoint.model
        shape = describe_shape(model.model.config)
        shape += "" if arguments.weights == Weights.auto else f", weights in {arguments.weights}"
        for mode in arguments.compile:
            variant = ModelVariant(AttentionKind(arguments.attention), CompileMode(mode))
            clock = time.monotonic()
            try:
                own = make_variant(variant, model, folder)
                figures = VariantFigures(variant.name(own), round(time.monotonic() - clock, 2))
                found.append(figures)
                measure(own, figures, arguments)
            except (ValueError, RuntimeError) as error:
                notes.append(f"compile {mode}: {' '.join(str(error).split())[:300]}")
            write(arguments.output, shape, found, notes)
    if not any(one.points for one in found):
        raise SystemExit("; ".join(notes))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", required=True)
    parser.add_argument("--dtype", required=True)
    parser.add_argument("--device", required=True)
    parser.add_argument("--attention", default="auto", choices=list(AttentionKind))
    parser.add_argument("--weights", default=Weights.auto.value, choices=list(Weights))
    parser.add_argument("--compile", nargs="+", default=["off", "on"], choices=["off", "on"])
    parser.add_argument("--rows", type=ascending_numbers, required=True)
    parser.add_argument("--cached", type=ascending_numbers, required=True)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--buffer-mb", type=int, default=1024, help="buffer that is copied to measure the bandwidth")
    parser.add_argument("--output", type=Path, required=True)
    return parser.parse_args()


def measure(model: CausalModel, figures: VariantFigures, arguments: argparse.Namespace) -> None:
    gauge = RateGauge(model.device, model.dtype, arguments.buffer_mb << 20)
    caches = {cached: fill_cache(model, cached, arguments.rows[-1]) for cached in arguments.cached}
    for rows in arguments.rows:
        tree, cache = make_tree(model, rows), caches[arguments.cached[0]]
        seconds = time_once(lambda tree=tree, cache=cache, rows=rows: model.forward(tree, cache, rows), model.device)
        figures.first_s[rows] = round(seconds, 3)
    points, rates = measure_curve({figures.name: model}, caches, arguments.rows, arguments.rounds, gauge)
    floor = StepFloor(share_of(model.model.config, model.dtype), model.dtype.itemsize, rates, multiplied_bytes(model))
    for point in points:
        forward = partial(model.forward, make_tree(model, point.rows), caches[point.cached], point.rows)
        figures.points.append(describe_point(point, floor) | count_launches(forward, model.device))
    if model.device.type == "cuda":
        figures.memory_gb = round(torch.cuda.max_memory_allocated() / 1e9, 2)
        torch.cuda.reset_peak_memory_stats()


def multiplied_bytes(model: CausalModel) -> int | None:
    """The bytes of the matrices that rows are multiplied with; None if none of them is quantised."""
    linear = [one for one in model.model.modules() if isinstance(one, nn.Linear)]
    return sum(map(num_weight_bytes, linear)) if quantized_parameters(model.model) else None


def describe_point(point: StepTimeSample, floor: StepFloor) -> dict[str, Any]:
    floor_s = floor.seconds(point.rows, point.cached)
    moved = floor.num_bytes(point.rows, point.cached) / point.median_s
    return {
        "cached": point.cached,
        "rows": point.rows,
        "ms": round(point.median_s * MILLI, 4),
        "floor_ms": round(floor_s * MILLI, 4),
        "of_bandwidth": round(moved / floor.rates.bytes_per_s, 4),
        "bytes_per_s": floor.rates.bytes_per_s,
    }


def count_launches(forward: Callable[[], object], device: torch.device) -> dict[str, int]:
    """Kernels that a step runs on the GPU, and calls with which the host asks for them; 0 on a CPU."""
    if device.type != "cuda":
        return {"kernels": 0, "launches": 0}
    forward()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as observed:
        forward()
        torch.cuda.synchronize(device)
    names = [(str(event.device_type), event.name) for event in observed.events() or []]
    on_gpu = [name for place, name in names if place.endswith("CUDA") and not name.startswith(("Memcpy", "Memset"))]
    asked = [name for place, name in names if place.endswith("CPU") and "Launch" in name and name.startswith("cu")]
    return {"kernels": len(on_gpu), "launches": len(asked)}


def write(folder: Path, shape: str, found: list[VariantFigures], notes: list[str]) -> None:
    """Writes what there is so far: a later variant may crash the process."""
    best = [min(one.points, key=lambda point: (point["cached"], point["rows"])) for one in found if one.points]
    summary = "; ".join(
        f"{one.name}: {point['ms']:.2f} ms at {point['rows']} row, {point['of_bandwidth']:.0%} of bandwidth"
        for one, point in zip([one for one in found if one.points], best, strict=True)
    )
    data = {"summary": summary, "shape": shape, "variants": [vars(one) for one in found], "notes": notes}
    (folder / "steps.json").write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    (folder / "steps.md").write_text(f"# Steps\n\n{describe(shape, found, notes)}\n", encoding="utf-8")


def describe(shape: str, found: list[VariantFigures], notes: list[str]) -> str:
    columns = ["variant", "cached", "rows", "ms", "floor ms", "of bandwidth", "kernels", "launches"]
    rows = [
        (one.name, point["cached"], point["rows"], f"{point['ms']:.3f}", f"{point['floor_ms']:.3f}",
         f"{point['of_bandwidth']:.0%}", point["kernels"], point["launches"])
        for one in found
        for point in one.points
    ]  # fmt: skip
    told = [
        f"{one.name}: made in {one.ready_s:.1f} s"
        + (f", at most {one.memory_gb:.1f} GB allocated" if one.memory_gb is not None else "")
        + "; first step with "
        + ", ".join(f"{rows} rows {seconds:.2f} s" for rows, seconds in one.first_s.items())
        for one in found
    ]
    rates = [point["bytes_per_s"] for one in found for point in one.points][:1]
    floor = f" The floor counts bytes at {rates[0] / 1e9:,.0f} GB/s, as measured here." if rates else ""
    return f"{shape}.{floor}\n\n{markdown_table(columns, rows)}\n\n{bullets([*told, *notes])}"


if __name__ == "__main__":
    run()
