"""Compiles every GPU kernel for every kind of GPU, and shows what a program of it takes.

    python -m benchmarks.kernels
    python -m benchmarks.kernels --architectures 90,100 --dtypes bfloat16

Nothing runs, and no GPU is needed. The kernels are compiled by this version of Triton, in the shapes in which they run
for models of about 7B. Exit status 1: a kernel needs more than a GPU of its kind has, or spills more bytes than
the table says are allowed.
"""

from __future__ import annotations

import argparse

import torch
import triton

from benchmarks.shared.compiled_kernels import (
    ARCHITECTURES,
    DTYPES,
    MOST_SPILLED,
    SHARED_MEMORY,
    Resources,
    most_spilled_by_attention,
    variants,
)
from benchmarks.shared.options import add_output, make_parser, parse
from benchmarks.shared.report import bullets, markdown_table, progress, publish
from lp.platform.hardware import dtype_name

NAMES = {dtype_name(dtype): dtype for dtype in DTYPES}


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument(
        "--architectures", type=read_architectures, default=list(ARCHITECTURES), metavar="80,90,...",
        help=f"compute capabilities (default {','.join(map(str, ARCHITECTURES))})",
    )  # fmt: skip
    parser.add_argument("--dtypes", nargs="+", choices=list(NAMES), default=list(NAMES), help="default: all of them")
    add_output(parser)
    arguments = parse(parser)
    sections, data, faults = [], [], []
    for name in arguments.dtypes:
        rows = []
        by_architecture = [variants(NAMES[name], architecture) for architecture in arguments.architectures]
        for same in progress(list(zip(*by_architecture, strict=True)), name, unit="kernel"):
            found = [one.compile(architecture) for one, architecture in zip(same, arguments.architectures, strict=True)]
            for variant, architecture, resources in zip(same, arguments.architectures, found, strict=True):
                if fault := variant.fault(resources, architecture):
                    faults.append(f"{variant.name}, {name}, sm_{architecture}: {fault}")
                data.append({"kernel": variant.name, "dtype": name, "sm": architecture, **vars(resources)})
            rows.append((same[0].name, *map(describe, found)))
        columns = ["kernel", *(f"sm_{architecture}" for architecture in arguments.architectures)]
        sections.append(f"## {name}\n\n{markdown_table(columns, rows)}")
    limits = ", ".join(f"sm_{one}: {SHARED_MEMORY[one] >> 10} KB" for one in arguments.architectures)
    notes = [
        f"Triton {triton.__version__}, torch {torch.__version__}",
        "Registers of a thread / bytes of them that are spilled to memory / shared memory of a program in KB.",
        f"Limits of shared memory: {limits}. At most {MOST_SPILLED} bytes may be spilled, "
        f"{most_spilled_by_attention()} by attention.",
        *(f"BEYOND A LIMIT: {fault}" for fault in faults),
    ]
    body = "\n\n".join([bullets(notes), *sections])
    publish(arguments.output, f"kernels-triton-{triton.__version__}", "GPU kernels as they are compiled", body,
            {"kernels": data})  # fmt: skip
    if faults:
        raise SystemExit(1)


def describe(found: Resources) -> str:
    return f"{found.registers} / {found.spilled} / {found.shared / 1024:.0f}"


def read_architectures(text: str) -> list[int]:
    try:
        found = [int(one) for one in text.split(",")]
    except ValueError:
        found = []
    if not found or not set(found) <= set(ARCHITECTURES):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of {', '.join(map(str, ARCHITECTURES))}")
    return found


if __name__ == "__main__":
    main()
