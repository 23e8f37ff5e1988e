"""Estimates a step on an H200 from its launches, bytes and operations, with and without fusing.

    python -m benchmarks.projections.gpu_step --model llama-7b --rows 1,64 --context 1024
    python -m benchmarks.projections.gpu_step --model llama-3.1-8b --weights int4
    python -m benchmarks.projections.gpu_step --model llama-3.1-8b --rows 16,64 --context 8192,32768 --share 2,4

The fused forward's kernels are those of the real plan, made from the model's shape alone; needs triton, no GPU. The
launches of the forward without fusing are those of transformers' own operations, which an emulated device has counted.
How long kernels take is computed by what one H200 has shown (benchmarks/projections/kernel_costs.py); the measured
steps are in benchmarks/results/gpu-speed.md.

With --share the times of fused steps alone are shown, on one GPU and if ranks of lookahead parallelism compute a part
of the rows each; for an H100 as well.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from itertools import product
from typing import Any

from benchmarks.projections.gpus import GPUS, H200, SHARE_OF_BANDWIDTH, SHARE_OF_FLOPS, Gpu
from benchmarks.projections.kernel_costs import (
    ATTENTION_US,
    DECODED,
    FEW_ROWS,
    LEAST_US,
    MANY_ROWS,
    SHARE_AT_FEW_ROWS,
    SHARE_AT_MANY_ROWS,
    Cost,
    costs_of,
    plan_of,
    unfused,
)
from benchmarks.projections.network import add_exchange
from benchmarks.projections.streams.curves import largest_part
from benchmarks.shared.options import add_output, ascending_numbers, make_parser, parse
from benchmarks.shared.report import bullets, markdown_table, publish
from benchmarks.shared.shapes import SHAPES, make_config
from lp.model.gpu.plan import Instruction
from lp.model.quantization.quantize import Weights

# Kernels in a graph of transformers' own operations, of each layer and beside the layers, as an emulated device counts.
IN_A_LAYER, BESIDE_LAYERS = 57, 25
# The GPUs on which steps are shared: the figures of kernels are from the first.
SHARED_ON = (H200, GPUS[1])


def main() -> None:
    arguments = parse_arguments()
    plan, weights = plan_of(make_config(SHAPES[arguments.model])), Weights(arguments.weights)
    plans = {"fused": plan}
    if weights is not Weights.auto:
        plans[f"fused, {weights}"] = plan_of(make_config(SHAPES[arguments.model]), weights)
    table, data = describe_shared(plan, arguments) if arguments.share else describe_parts(plans, arguments)
    notes = [
        f"{arguments.model}, bfloat16, {H200.name}: {H200.memory_gb_per_s:,} GB/s "
        f"and {H200.tflops} TFLOP/s in the data sheet; {SHARE_OF_BANDWIDTH:.0%} and {SHARE_OF_FLOPS:.0%} are taken.",
        f"Products of up to {FEW_ROWS} rows read at {SHARE_AT_FEW_ROWS:.0%} of the bandwidth, those of {MANY_ROWS} and "
        f"more at {SHARE_AT_MANY_ROWS:.0%}.",
        f"A kernel takes as long as its bytes or its operations, and at least {LEAST_US:g} us; one of attention "
        f"takes {ATTENTION_US:g} us and the time of its bytes. These figures are from one H200.",
        "The graph alone: neither the copy of inputs, nor sampling, nor the host.",
    ]
    if weights is not Weights.auto:
        notes.append(
            f"Products of weights in {weights} decode as many numbers a second as one H100 has decoded in int4: "
            + ", ".join(f"{rate / 1e6:.2g}e12 with up to {rows} rows" for rows, rate in DECODED.items())
            + "."
        )
    if arguments.share:
        notes += [
            f"Shared steps take as long as the rank with the most rows, which also computes accepted tokens that it "
            f"lacks, and an exchange of {arguments.exchange_us:g} us. No two GPUs have run one.",
            *(f"{gpu.name}: {'; '.join(gpu.sources)}." for gpu in SHARED_ON),
        ]
    body = "\n\n".join(["**ESTIMATED** by kernels that one H200 has run.", bullets(notes), table])
    name = f"gpu_step-{arguments.model}{'' if weights is Weights.auto else f'-{weights}'}"
    title = "ESTIMATED: a step on an H200"
    if arguments.share:
        name, title = f"{name}-shared", "ESTIMATED: steps that ranks share, on an H200 and an H100"
    publish(arguments.output, name, title, body, {"steps": data})


def parse_arguments() -> argparse.Namespace:
    parser = make_parser(__doc__)
    parser.add_argument("--model", default="llama-7b", choices=SHAPES, help="a shape (default %(default)s)")
    parser.add_argument("--rows", type=ascending_numbers, default=[1, 64], metavar="R,R,...", help="default 1,64")
    parser.add_argument(
        "--weights", default=Weights.auto.value, choices=list(Weights),
        help="int8 or int4: adds the fused forward with weights that are quantised so",
    )  # fmt: skip
    parser.add_argument(
        "--context", type=ascending_numbers, default=[1024], metavar="C,C,...", help="cached tokens (default 1024)"
    )
    parser.add_argument(
        "--share", type=ascending_numbers, default=[], metavar="R,R,...", help="numbers of ranks that share a step"
    )
    add_exchange(parser, "of a shared step")
    add_output(parser)
    return parse(parser)


def describe_parts(
    plans: Mapping[str, list[Instruction]], arguments: argparse.Namespace
) -> tuple[str, list[dict[str, Any]]]:
    """What the kernels of a step take, by kind, as a table and as figures. plans: of fused forwards, by name."""
    launches = IN_A_LAYER * make_config(SHAPES[arguments.model]).num_hidden_layers + BESIDE_LAYERS
    table, data = [], []
    for context, rows in product(arguments.context, arguments.rows):
        costs_by_name = {name: costs_of(plan, rows, context) for name, plan in plans.items()}
        forwards = {"without fusing": unfused(costs_by_name["fused"], launches), **costs_by_name}
        for name, costs in forwards.items():
            table += [_line(context, rows, name, cost.kind, [cost]) for cost in costs]
            table.append(_line(context, rows, name, "all", costs))
            data.append({"context": context, "rows": rows, "forward": name, "us": _microseconds(costs, H200, rows)})
    columns = ["cached", "rows", "forward", "kernels of", "launches", "GB moved", "TFLOP", "estimated ms"]
    return markdown_table(columns, table, 4), data


def describe_shared(plan: list[Instruction], arguments: argparse.Namespace) -> tuple[str, list[dict[str, Any]]]:
    """What fused steps take on one GPU and on several that share them, as a table and as figures."""
    table, data = [], []
    for gpu in SHARED_ON:
        for context, rows in product(arguments.context, arguments.rows):
            whole_us = _microseconds(costs_of(plan, rows, context), gpu, rows)
            line = [gpu.name, context, rows, f"{whole_us / 1e3:.2f}"]
            for ranks in arguments.share:
                part = largest_part(rows, ranks)
                shared_us = _microseconds(costs_of(plan, part, context), gpu, part) + arguments.exchange_us
                line += [part, f"{shared_us / 1e3:.2f}", f"{whole_us / shared_us:.2f}x"]
                data.append({"gpu": gpu.name, "context": context, "rows": rows, "ranks": ranks, "us": shared_us})
            table.append(line)
    columns = ["GPU", "cached", "rows", "one GPU, estimated ms"]
    for ranks in arguments.share:
        columns += [f"{ranks} ranks, rows", "PROJECTED ms", "speed"]
    return markdown_table(columns, table), data


def _microseconds(costs: list[Cost], gpu: Gpu, rows: int) -> float:
    return sum(cost.microseconds(gpu, rows) for cost in costs)


def _line(context: int, rows: int, name: str, kind: str, costs: list[Cost]) -> list[object]:
    moved, computed = sum(cost.num_bytes for cost in costs), sum(cost.num_operations for cost in costs)
    launches, took = sum(cost.launches for cost in costs), _microseconds(costs, H200, rows)
    figures = [f"{moved / 1e9:.2f}", f"{computed / 1e12:.2f}", f"{took / 1e3:.2f}"]
    return [context, rows, name, kind, launches, *figures]


if __name__ == "__main__":
    main()
