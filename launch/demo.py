"""Demonstrates lookahead decoding; `make demo` runs it.

The demonstration continues a function header on two ranks and streams the text. It then compares lookahead with
autoregressive decoding and with the default method, auto, on the same prompt.

    python -m launch.demo
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

GENERATE = Path(__file__).with_name("generate.py")
PROMPT = '''import os
import sys


class Reader:
    """Reads records from a file, one a line."""

    def __init__(self, path, encoding="utf-8"):
        self.path = path
        self.encoding = encoding
        self.records = []

    def read(self):'''
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}
# The greedy text of a tiny model repeats itself, so the text is sampled. With one seed it is the same for all methods.
SAMPLED = ["sampling.temperature=0.7", "sampling.seed=5"]
LOOKAHEAD = ["decode=lookahead", "decode.window=7", "decode.ngram=5", "decode.guesses=7"]


def ranks_command(num_ranks: int, arguments: list[str]) -> list[str]:
    """Returns the command that runs generate.py on this many ranks of this machine."""
    launcher = [sys.executable]
    if num_ranks > 1:
        launcher += ["-m", "torch.distributed.run", "--nproc-per-node", str(num_ranks)]
    return [*launcher, str(GENERATE), *arguments]


def measure(num_ranks: int, arguments: list[str]) -> dict[str, Any]:
    """Runs generate.py and returns its JSON record. Raises SystemExit if it fails."""
    command = ranks_command(num_ranks, [*arguments, "format=json"])
    result = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT)
    if result.returncode:
        raise SystemExit(f"{' '.join(command)} ended with exit code {result.returncode}:\n{result.stderr.strip()}")
    return json.loads(result.stdout.strip().splitlines()[-1])


def compare(console: Console, dtype: str, num_ranks: int, shared: list[str]) -> tuple[list[list[str]], bool]:
    """Measures all methods. Returns the rows of the table for one dtype, and whether all texts are the same."""
    methods = {"lookahead": LOOKAHEAD, "auto": ["decode=auto"]}
    runs = [("autoregressive", 1, ["decode=autoregressive"])]
    runs += [(name, ranks, arguments) for name, arguments in methods.items() for ranks in (1, num_ranks)]
    rows, records = [], []
    for method, ranks, arguments in runs:
        with console.status(f"measuring {method} on {ranks} rank(s) in {dtype}"):
            records.append(measure(ranks, [*shared, f"model.dtype={dtype}", *arguments]))
        base, record = records[0], records[-1]
        rows.append(
            [
                dtype,
                method,
                str(ranks),
                str(record["steps"]),
                f"{record['tokens_per_step']:.2f}",
                f"{record['tokens_per_s']:.0f}",
                f"{record['tokens_per_s'] / base['tokens_per_s']:.2f}x",
                "yes" if record["token_ids"] == base["token_ids"] else "no",
            ]
        )
    return rows, all(record["token_ids"] == records[0]["token_ids"] for record in records)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2, help="ranks of lookahead parallelism (default: %(default)s)")
    parser.add_argument("--max-new-tokens", type=int, default=160, help="tokens to generate (default: %(default)s)")
    options = parser.parse_args()
    console = Console()
    shared = [f"prompt={PROMPT}", f"max_new_tokens={options.max_new_tokens}", "parallel.threads=1", *SAMPLED]

    console.rule(f"lookahead decoding on {options.ranks} ranks; coloured runs are tokens of one step")
    streamed = subprocess.run(ranks_command(options.ranks, [*shared, *LOOKAHEAD]), env=ENVIRONMENT)
    if streamed.returncode:
        return streamed.returncode

    console.rule("the same prompt, measured: each run is a process of its own, with one thread per rank")
    figures = ("tokens/\nstep", "tokens/\ns", "speed-up", "same\ntext")
    table = Table("dtype", "method", "ranks", "steps", *figures, box=SIMPLE, collapse_padding=True)
    rows, is_lossless = compare(console, "float32", options.ranks, shared)
    for row in [*rows, *compare(console, "bfloat16", options.ranks, shared)[0]]:
        table.add_row(*row)
    console.print(table)
    console.print(
        "Sampled at temperature 0.7 with one seed. Speed-up is over autoregressive decoding of the same dtype. auto, "
        "the default, uses as many rows per step as pay off here. lookahead (7, 5, 7) uses about 40, as in the paper. "
        "They are nearly free on a GPU but expensive on CPU cores, so that a second rank makes a difference. In "
        "float32 the text must be the same; in bfloat16 near-ties may round to another token.",
        style="dim",
    )
    return 0 if is_lossless else 1


if __name__ == "__main__":
    sys.exit(main())
