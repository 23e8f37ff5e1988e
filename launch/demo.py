"""The demonstration behind `make demo`: a function header continued by lookahead on two ranks, streamed, then compared
with autoregressive decoding of the same prompt on one rank, in the same session.

    python -m launch.demo
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

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

    def read(self):
'''
LOOKAHEAD = ["decode=lookahead", "decode.window=7", "decode.ngram=5", "decode.guesses=7"]


def ranks_command(num_ranks: int, arguments: list[str]) -> list[str]:
    """generate.py on that many ranks of this machine."""
    launcher = [sys.executable]
    if num_ranks > 1:
        launcher += ["-m", "torch.distributed.run", "--nproc-per-node", str(num_ranks)]
    return [*launcher, str(GENERATE), *arguments]


def measure(num_ranks: int, arguments: list[str]) -> dict[str, Any]:
    """The JSON record of one run."""
    command = ranks_command(num_ranks, [*arguments, "format=json"])
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode:
        raise SystemExit(f"{' '.join(command)} ended with exit code {result.returncode}:\n{result.stderr.strip()}")
    return json.loads(result.stdout.strip().splitlines()[-1])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2, help="ranks of lookahead parallelism (default: %(default)s)")
    parser.add_argument("--max-new-tokens", type=int, default=160, help="tokens to generate (default: %(default)s)")
    options = parser.parse_args()
    console = Console()
    shared = [f"prompt={PROMPT}", f"max_new_tokens={options.max_new_tokens}", "parallel.threads=1"]

    console.rule(f"lookahead decoding on {options.ranks} ranks; coloured runs are tokens of one step")
    streamed = subprocess.run(ranks_command(options.ranks, [*shared, *LOOKAHEAD]))
    if streamed.returncode:
        return streamed.returncode

    console.rule("the same prompt, measured: every run is a process of its own, one thread a rank")
    runs = {
        "autoregressive, 1 rank": (1, [*shared, "decode=autoregressive"]),
        "lookahead, 1 rank": (1, [*shared, *LOOKAHEAD]),
        f"lookahead, {options.ranks} ranks": (options.ranks, [*shared, *LOOKAHEAD]),
    }
    records = {name: measure(*run) for name, run in runs.items()}
    base = records["autoregressive, 1 rank"]
    table = Table("run", "steps", "tokens per step", "tokens/s", "speed-up", "same text")
    for name, record in records.items():
        table.add_row(
            name,
            str(record["steps"]),
            f"{record['tokens_per_step']:.2f}",
            f"{record['tokens_per_s']:.0f}",
            f"{record['tokens_per_s'] / base['tokens_per_s']:.2f}x",
            "yes" if record["token_ids"] == base["token_ids"] else "NO",
        )
    console.print(table)
    return 0 if all(record["token_ids"] == base["token_ids"] for record in records.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
