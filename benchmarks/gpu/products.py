"""Times all candidates for the products of a shape, by rows: cuBLAS, cuBLASLt, and the kernel that splits the inputs.

Then it times the products of quantised weights of the same shapes. It is an item of benchmarks.gpu, which starts it.
Nothing is read from the times that are kept on the disk, nor kept. On a CPU the only candidate is torch's own product.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.gpu.steps import MILLI
from benchmarks.shared.compiled_kernels import PACKED_FORMATS
from benchmarks.shared.options import ascending_numbers
from benchmarks.shared.random_weights import random_packed
from benchmarks.shared.report import markdown_table, progress
from benchmarks.shared.shapes import describe_shape, model_of_shape, read_config
from lp.model.causal import CausalModel
from lp.model.checkpoint import DTYPES, pick_device
from lp.model.gpu.make import make_program
from lp.model.gpu.packed_product import PackedProducts
from lp.model.gpu.product_times import Times, describe, fastest, time_candidates, time_on_gpu
from lp.model.gpu.products import CUBLAS, CUBLASLT, Products, ProductShape
from lp.model.kernels import AttentionKind
from lp.model.program.steps import Product
from lp.model.quantization.weight import WeightFormat
from lp.platform.hardware import require_float32

MICRO = 1e6


@dataclass(frozen=True)
class ProductSample:
    """The times of a product's candidates. count: products of that shape in a step."""

    shape: ProductShape
    count: int
    rows: int
    times: Times

    @property
    def chosen_s(self) -> float:
        return self.times[fastest(self.times)]


@dataclass(frozen=True)
class PackedSample:
    """The time of a step's products with quantised weights. num_bytes: of all these weights."""

    format: str
    rows: int
    seconds: float
    num_bytes: int


def run() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", required=True)
    parser.add_argument("--dtype", required=True, choices=list(DTYPES))
    parser.add_argument("--device", required=True)
    parser.add_argument("--rows", type=ascending_numbers, required=True)
    parser.add_argument("--packed-rows", type=ascending_numbers, default=[], help="of quantised weights (default none)")
    parser.add_argument("--output", type=Path, required=True)
    arguments = parser.parse_args()
    device, config = pick_device(arguments.device), read_config(arguments.config)
    require_float32(device)
    model = CausalModel(model_of_shape(config, DTYPES[arguments.dtype]), 4096, [], AttentionKind.eager)
    steps = [step for step in make_program(model).steps if isinstance(step, Product)]
    shapes = Counter(
        ProductShape.of(step.weight, step.bias and step.bias.tensor)
        for step in steps
        if isinstance(step.weight, Tensor)
    )
    with torch.inference_mode():
        samples = [
            ProductSample(shape, count, rows, times)
            for shape, count in progress(list(shapes.items()), "products", unit="shape")
            for rows, times in time_shape(shape, arguments.rows, device).items()
        ]
        packed = [
            sample
            for format in (progress(PACKED_FORMATS, "quantised", unit="format") if arguments.packed_rows else ())
            for sample in time_packed(format, shapes, arguments.packed_rows, device)
        ]
    write(arguments.output, describe_shape(config), samples, packed)


def time_shape(shape: ProductShape, all_rows: list[int], device: torch.device) -> dict[int, Times]:
    """The times of a product by its rows, with random weights."""
    size = shape.num_inputs, shape.num_outputs
    weight = torch.empty_strided(size, shape.strides, dtype=shape.dtype, device=device).normal_()
    bias = torch.ones(shape.num_outputs, dtype=shape.dtype, device=device) if shape.has_bias else None
    return {rows: time_rows(shape, rows, weight, bias) for rows in all_rows}


def time_rows(shape: ProductShape, num_rows: int, weight: Tensor, bias: Tensor | None) -> Times:
    candidates = Products(weight.device).candidates(shape, num_rows)
    if weight.device.type == "cuda":
        return time_candidates(candidates, num_rows, weight, bias, time_on_gpu)
    return time_candidates({CUBLAS: candidates[CUBLAS]}, num_rows, weight, bias, time_on_cpu)


def time_packed(
    format: WeightFormat, shapes: Mapping[ProductShape, int], all_rows: list[int], device: torch.device
) -> list[PackedSample]:
    """The times of a step's products by its rows. shapes: how many of each a step has."""
    products = PackedProducts(device)
    seconds, num_bytes = dict.fromkeys(all_rows, 0.0), 0
    for shape, count in shapes.items():
        weight = random_packed(format, shape.num_outputs, shape.num_inputs, shape.dtype, device)
        num_bytes += count * weight.num_bytes
        for rows in all_rows:
            x = torch.randn(rows, shape.num_inputs, dtype=shape.dtype, device=device)
            multiply = partial(products.multiply, x, weight, None)
            multiply()
            seconds[rows] += count * time_on_gpu(multiply)
    return [PackedSample(format.name, rows, seconds[rows], num_bytes) for rows in all_rows]


def time_on_cpu(run: Callable[[], object]) -> float:
    begin = time.perf_counter()
    run()
    return time.perf_counter() - begin


def write(folder: Path, what: str, samples: list[ProductSample], packed: list[PackedSample]) -> None:
    data = {
        "summary": describe([one.times for one in samples]),
        "model": what,
        "samples": [
            {"product": one.shape.name, "count": one.count, "rows": one.rows, "seconds": one.times} for one in samples
        ],
        "packed": [vars(one) for one in packed],
    }
    (folder / "products.json").write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    (folder / "products.md").write_text(f"# Products\n\n{report(what, samples, packed)}\n", encoding="utf-8")


def report(what: str, samples: list[ProductSample], packed: list[PackedSample]) -> str:
    rows = [
        (one.shape.name, one.rows, in_us(one.times, CUBLAS), in_us(one.times, CUBLASLT), best_split(one.times),
         fastest(one.times), f"{gigabytes_per_s(one):,.0f}")
        for one in samples
    ]  # fmt: skip
    columns = ["product", "rows", "cuBLAS us", "cuBLASLt us", "split us", "chosen", "GB/s"]
    totals = [
        (rows, f"{sum(one.count * one.times[CUBLAS] for one in found) * MILLI:.3f}",
         f"{sum(one.count * one.chosen_s for one in found) * MILLI:.3f}")
        for rows in sorted({one.rows for one in samples})
        if (found := [one for one in samples if one.rows == rows])
    ]  # fmt: skip
    step = markdown_table(["rows", "all products of a step by cuBLAS, ms", "by the chosen functions, ms"], totals)
    body = f"{what}. Weights are not in the second cache.\n\n{step}\n\n{markdown_table(columns, rows)}"
    return f"{body}\n\n{report_packed(samples, packed)}" if packed else body


def report_packed(samples: list[ProductSample], packed: list[PackedSample]) -> str:
    chosen: dict[int, float] = {}
    for one in samples:
        chosen[one.rows] = chosen.get(one.rows, 0.0) + one.count * one.chosen_s
    rows = [
        (one.format, one.rows, f"{one.seconds * MILLI:.3f}", f"{one.num_bytes / one.seconds / 1e9:,.0f}",
         f"{chosen[one.rows] / one.seconds:.2f}" if one.rows in chosen else "")
        for one in packed
    ]  # fmt: skip
    columns = ["weights", "rows", "all products of a step, ms", "GB/s", "times as fast as with 16 bits"]
    return markdown_table(columns, rows)


def in_us(times: Times, name: str) -> str:
    return f"{times[name] * MICRO:.1f}" if name in times else ""


def best_split(times: Times) -> str:
    """The time of the best number of shares, and that number."""
    splits = {name: seconds for name, seconds in times.items() if name.startswith("split-")}
    name = min(splits, key=lambda one: splits[one], default="")
    return f"{splits[name] * MICRO:.1f} ({name.removeprefix('split-')})" if name else ""


def gigabytes_per_s(one: ProductSample) -> float:
    """What the chosen function reads of the weight."""
    return one.shape.num_inputs * one.shape.num_outputs * one.shape.dtype.itemsize / one.chosen_s / 1e9


if __name__ == "__main__":
    run()
