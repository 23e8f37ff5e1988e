"""Estimates a step on an H200 from its launches, bytes and operations, with and without fusing.

    python -m benchmarks.projections.gpu_step --model llama-7b --rows 1,64 --context 1024
    python -m benchmarks.projections.gpu_step --model llama-3.1-8b --weights int4

The fused forward's kernels are those of the real plan, made from the model's shape alone; needs triton, no GPU. The
launches of the forward without fusing are those of transformers' own operations, which an emulated device has counted.
How long kernels take is computed by what one H200 has shown (benchmarks/projections/kernel_costs.py); the measured
steps are in benchmarks/results/gpu-speed.md.
"""

from __future__ import annotations

from benchmarks.projections.gpus import H200, SHARE_OF_BANDWIDTH, SHARE_OF_FLOPS
from benchmarks.projections.kernel_costs import (
    ASSUMED_SHARE_OF_PACKED,
    ATTENTION_US,
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
from benchmarks.shared.options import add_output, ascending_numbers, make_parser, parse
from benchmarks.shared.report import bullets, markdown_table, publish
from benchmarks.shared.shapes import SHAPES, make_config
from lp.model.quantization.quantize import Weights

# Kernels in a graph of transformers' own operations, of each layer and beside the layers, as an emulated device counts.
IN_A_LAYER, BESIDE_LAYERS = 57, 25


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--model", default="llama-7b", choices=SHAPES, help="a shape (default %(default)s)")
    parser.add_argument("--rows", type=ascending_numbers, default=[1, 64], metavar="R,R,...", help="default 1,64")
    parser.add_argument(
        "--weights", default=Weights.auto.value, choices=list(Weights),
        help="int8 or int4: adds the fused forward with weights that are quantised so",
    )  # fmt: skip
    parser.add_argument("--context", type=int, default=1024, help="cached tokens (default %(default)s)")
    add_output(parser)
    arguments = parse(parser)
    config = make_config(SHAPES[arguments.model])
    plan, weights = plan_of(config), Weights(arguments.weights)
    quantized = None if weights is Weights.auto else plan_of(config, weights)
    launches = IN_A_LAYER * config.num_hidden_layers + BESIDE_LAYERS
    table, data = [], []
    for num_rows in arguments.rows:
        fused = costs_of(plan, num_rows, arguments.context)
        forwards = {"without fusing": unfused(fused, launches), "fused": fused}
        if quantized is not None:
            forwards[f"fused, {weights}"] = costs_of(quantized, num_rows, arguments.context)
        for name, costs in forwards.items():
            table += [_line(num_rows, name, cost.kind, [cost]) for cost in costs]
            table.append(_line(num_rows, name, "all", costs))
            data.append(
                {"rows": num_rows, "forward": name, "us": sum(cost.microseconds(H200, num_rows) for cost in costs)}
            )
    notes = [
        f"{arguments.model}, bfloat16, {arguments.context} cached tokens, {H200.name}: {H200.memory_gb_per_s:,} GB/s "
        f"and {H200.tflops} TFLOP/s in the data sheet; {SHARE_OF_BANDWIDTH:.0%} and {SHARE_OF_FLOPS:.0%} are taken.",
        f"Products of up to {FEW_ROWS} rows read at {SHARE_AT_FEW_ROWS:.0%} of the bandwidth, those of {MANY_ROWS} and "
        f"more at {SHARE_AT_MANY_ROWS:.0%}.",
        f"A kernel takes as long as its bytes or its operations, and at least {LEAST_US:g} us; one of attention "
        f"takes {ATTENTION_US:g} us and the time of its bytes. These figures are from one H200.",
        "The graph alone: neither the copy of inputs, nor sampling, nor the host.",
    ]
    if quantized is not None:
        notes.append(
            f"Products of weights in {weights} are ASSUMED to read at {ASSUMED_SHARE_OF_PACKED:.0%} of the bandwidth, "
            "which no GPU has shown."
        )
    columns = ["rows", "forward", "kernels of", "launches", "GB moved", "TFLOP", "estimated ms"]
    body = "\n\n".join(
        ["**ESTIMATED** by kernels that one H200 has run.", bullets(notes), markdown_table(columns, table, 3)]
    )
    name = f"gpu_step-{arguments.model}{'' if quantized is None else f'-{weights}'}"
    publish(arguments.output, name, "ESTIMATED: a step on an H200", body, {"steps": data})


def _line(num_rows: int, name: str, kind: str, costs: list[Cost]) -> list[object]:
    moved, computed = sum(cost.num_bytes for cost in costs), sum(cost.num_operations for cost in costs)
    took = sum(cost.microseconds(H200, num_rows) for cost in costs)
    launches = sum(cost.launches for cost in costs)
    return [num_rows, name, kind, launches, f"{moved / 1e9:.2f}", f"{computed / 1e12:.2f}", f"{took / 1e3:.2f}"]


if __name__ == "__main__":
    main()
