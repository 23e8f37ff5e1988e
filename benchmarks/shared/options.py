"""The command-line options of the benchmarks: those that many share, and how their values are read and checked."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import torch

from launch.config.memory import keep_memory as keep_freed_memory
from lp.model.checkpoint import DTYPES

FOLDER = Path(__file__).resolve().parents[1]


def command_line() -> str:
    """How the command that is running is called, without its options."""
    path = Path(sys.argv[0])
    inside = path.relative_to(FOLDER) if path.is_relative_to(FOLDER) else Path(path.name)
    parts = [part for part in inside.with_suffix("").parts if part != "__main__"]
    return f"python -m benchmarks.{'.'.join(parts)}"


def make_parser(description: str | None) -> argparse.ArgumentParser:
    """A parser that shows a command's docstring as it is written."""
    return argparse.ArgumentParser(
        prog=command_line(),
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def make_prompts_parser(description: str | None) -> argparse.ArgumentParser:
    """A parser with the options that every benchmark on prompts has."""
    parser = make_parser(description)
    parser.add_argument(
        "--prompts",
        help="JSONL file with a text under the key `prompt` in each line (default: launch/data/own_workload.jsonl)",
    )
    parser.add_argument("--model", default="demo/python-11m", help="checkpoint folder (default demo/python-11m)")
    parser.add_argument(
        "--limit",
        type=int,
        default=100,
        help="number of prompts taken from the start of the file (default %(default)s)",
    )
    parser.add_argument(
        "--max-new-tokens", type=int, default=128, help="new tokens for each prompt, at most (default %(default)s)"
    )
    parser.add_argument("--device", default="cpu", help="auto, cpu or cuda (default cpu)")
    add_threads(parser)
    add_output(parser)
    return parser


def add_threads(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--threads", type=int, default=1, help="threads that torch uses (default %(default)s)")


def add_decoded_texts(parser: argparse.ArgumentParser, limit: int, max_new_tokens: int) -> None:
    """Adds the options of texts that a model decodes for a projection. limit, max_new_tokens: their defaults."""
    parser.add_argument("--model", default="smollm2", help="decodes the texts: smollm2 or a folder (default smollm2)")
    parser.add_argument("--dtype", default="bfloat16", choices=DTYPES, help="of that model (default %(default)s)")
    parser.add_argument("--prompts", type=Path, metavar="FOLDER", help="folder with the prompts (default: our own)")
    parser.add_argument("--limit", type=int, default=limit, help="prompts over all categories (default %(default)s)")
    parser.add_argument(
        "--max-new-tokens", type=int, default=max_new_tokens, help="for each prompt (default %(default)s)"
    )


def add_copy(parser: argparse.ArgumentParser, weights: str) -> None:
    """Adds the options of texts that a model decodes with a copy of itself, which drafts. weights: default of the
    copy's.
    """
    parser.add_argument("--model", default="smollm2", help="smollm2, gemma3-270m or a folder (default %(default)s)")
    parser.add_argument("--dtype", default="float32", choices=DTYPES, help="of the model (default %(default)s)")
    parser.add_argument(
        "--weights", default=weights, choices=["int4", "int8"], help="of the copy (default %(default)s)"
    )
    parser.add_argument("--prompts", type=Path, metavar="FOLDER", help="folder with the prompts (default: our own)")
    parser.add_argument("--limit", type=int, default=28, help="prompts over all categories (default %(default)s)")
    parser.add_argument("--max-new-tokens", type=int, default=96, help="for each prompt (default %(default)s)")
    parser.add_argument("--temperature", type=float, default=0.0, help="0 is greedy (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="default %(default)s")


def add_random_models(parser: argparse.ArgumentParser, shapes: list[str], rows: list[int]) -> None:
    """Adds the options of steps of models with random weights. shapes: their names. rows: default of steps' rows."""
    parser.add_argument("--shapes", nargs="+", default=shapes, choices=shapes, help="default all")
    parser.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16"], choices=DTYPES, help="default both")
    numbers = ",".join(map(str, rows))
    parser.add_argument("--rows", type=ascending_numbers, default=rows, metavar="R,R,...", help=f"default {numbers}")


def add_stored(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--stored", action="store_true", help="weights as the GGUF file has them, instead of copies in the format"
    )


def add_output(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("benchmarks/results"),
        help="folder for the result files (default %(default)s)",
    )


def parse(parser: argparse.ArgumentParser, keep_memory: bool = True) -> argparse.Namespace:
    """Parses the arguments and rejects at once what would otherwise fail only at the end of a long run.

    keep_memory: tells the C library to keep freed memory, as the programs in launch/ do.
    """
    arguments = parser.parse_args()
    for name in ("limit", "max_new_tokens", "threads"):
        if getattr(arguments, name, 1) < 1:
            parser.error(f"--{name.replace('_', '-')} must be at least 1, not {getattr(arguments, name)}")
    try:
        arguments.output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        parser.error(f"--output {arguments.output} is not a folder that can be made: {error.strerror}")
    if not os.access(arguments.output, os.W_OK):
        parser.error(f"--output {arguments.output} is a folder that cannot be written to")
    torch.set_num_threads(getattr(arguments, "threads", torch.get_num_threads()))
    if keep_memory:
        keep_freed_memory()
    return arguments


def pair(text: str) -> tuple[int, int]:
    """Reads two whole numbers with a comma between them: the type of an option."""
    try:
        first, second = (int(number) for number in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not two whole numbers with a comma between") from None
    return first, second


def triple(text: str) -> tuple[int, int, int]:
    """Reads three whole numbers with commas between them: the type of an option."""
    try:
        first, second, third = (int(number) for number in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not three whole numbers with commas between") from None
    return first, second, third


def ascending_numbers(text: str) -> list[int]:
    """Reads whole numbers above 0 with commas between them and sorts them: the type of an option."""
    parts = text.split(",")
    if not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of whole numbers above 0, like 1,2,4")
    return sorted({int(part) for part in parts})
