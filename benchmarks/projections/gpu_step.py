"""Estimates a step on an H200 from its launches, bytes and operations, with and without fusing.

    python -m benchmarks.projections.gpu_step --model llama-7b --rows 1,64 --context 1024

The fused forward's kernels are those of the real plan, made from the model's shape alone; needs triton, no GPU. The
launches of the forward without fusing are those of transformers' own operations, which an emulated device has counted.
How long kernels take is computed by what one H200 has shown (benchmarks/projections/kernel_costs.py); the measured
steps are in benchmarks/results/gpu-speed.md.
"""

from __future__ import annotations

from benchmarks.projections.gpus import H200, SHARE_OF_BANDWIDTH, SHARE_OF_FLOPS
from benchmarks.projections.kernel_costs import (
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

# Kernels in a graph of transformers' own operations, of each layer and beside the layers, as an emulated device counts.
IN_A_LAYER, BESIDE_LAYERS = 57, 25


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--model", default="llama-7b", choices=SHAPES, help="a shape (default %(default)s)")
    parser.add_argument("--rows", type=ascending_numbers, default=[1, 64], metavar="R,R,...", help="default 1,64")
    parser.add_argument("--context", type=int, default=1024, help="cached tokens (default %(default)s)")
    add_output(parser)
    arguments = parse(parser)
    config = make_config(SHAPES[arguments.model])
    plan = plan_of(config)
    launches = IN_A_LAYER * config.num_hidden_layers + BESIDE_LAYERS
    table, data = [], []
    for num_rows in arguments.rows:
        fused = costs_of(plan, num_rows, arguments.context)
        for name, costs in (("without fusing", unfused(fused, launches)), ("fused", fused)):
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
    columns = ["rows", "forward", "kernels of", "launches", "GB moved", "TFLOP", "estimated ms"]
    body = "\n\n".join(
        ["**ESTIMATED** by kernels that one H200 has run.", bullets(notes), markdown_table(columns, table, 3)]
    )
    publish(arguments.output, f"gpu_step-{arguments.model}", "ESTIMATED: a step on an H200", body, {"steps": data})


def _line(num_rows: int, name: str, kind: str, costs: list[Cost]) -> list[object]:
    moved, computed = sum(cost.num_bytes for cost in costs), sum(cost.num_operations for cost in costs)
    took = sum(cost.microseconds(H200, num_rows) for cost in costs)
    launches = sum(cost.launches for cost in costs)
    return [num_rows, name, kind, launches, f"{moved / 1e9:.2f}", f"{computed / 1e12:.2f}", f"{took / 1e3:.2f}"]


if __name__ == "__main__":
    main()
