"""What the benchmarks share: prompts and models in, a progress bar, the machine described, tables and results out."""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import transformers
from tabulate import tabulate
from tqdm import tqdm
from transformers import AutoModelForCausalLM, PreTrainedModel

from launch.program import process
from launch.prompts import workloads
from launch.prompts.workloads import WorkloadSettings
from lp import Engine
from lp.hardware import processor_name
from lp.model.checkpoint import DTYPES

if TYPE_CHECKING:
    from matplotlib.figure import Figure

T = TypeVar("T")


def make_parser(description: str | None) -> argparse.ArgumentParser:
    """With the options that every benchmark on prompts has."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--prompts",
        help="JSONL file, a text under the key `prompt` in each line (default: launch/prompts/own_workload.jsonl)",
    )
    parser.add_argument("--model", default="demo/python-11m", help="checkpoint folder (default demo/python-11m)")
    parser.add_argument(
        "--limit", type=int, default=100, help="prompts, from the file's beginning (default %(default)s)"
    )
    parser.add_argument("--max-new-tokens", type=int, default=128, help="for each prompt (default %(default)s)")
    parser.add_argument("--device", default="cpu", help="auto, cpu or cuda (default cpu)")
    parser.add_argument("--threads", type=int, default=1, help="of torch (default 1)")
    add_output(parser)
    return parser


def triple(text: str) -> tuple[int, int, int]:
    """Three whole numbers with commas between: the type of an option."""
    try:
        first, second, third = (int(number) for number in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not three whole numbers with commas between") from None
    return first, second, third


def add_output(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results"), help="folder of the result files")


def parse(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """The arguments, with what would only fail at the end of a long run found at its beginning."""
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
    process.keep_memory()
    return arguments


def read_prompts(path: str | None, limit: int) -> list[str]:
    """The first `limit` texts of a JSONL file, or of the project's own workload.

    Ends the program with a message, which names the line, if the file is malformed.
    """
    try:
        return [problem.prompt for problem in workloads.load(WorkloadSettings(path=path, limit=limit))]
    except ValueError as error:
        raise SystemExit(str(error)) from None


def load_both(path: str, dtype: str, device: str) -> tuple[Engine, PreTrainedModel]:
    """A checkpoint as the engine has it, and as transformers runs it by itself."""
    engine = Engine.from_pretrained(path, dtype, device)
    model = AutoModelForCausalLM.from_pretrained(path, dtype=DTYPES[dtype])
    return engine, model.to(engine.checkpoint.model.device).eval()


def load_engine(path: str, dtype: str, device: str) -> Engine:
    """A checkpoint as the engine has it. Ends the program with a message if it cannot be used."""
    try:
        return Engine.from_pretrained(path, dtype, device)
    except ValueError as error:
        raise SystemExit(str(error)) from None


def encode(engine: Engine, texts: Sequence[str], max_new_tokens: int) -> list[list[int]]:
    """Token ids, cut where they would leave no room for the new tokens."""
    room = engine.checkpoint.max_length - max_new_tokens
    if room < 1:
        raise SystemExit(
            f"--max-new-tokens {max_new_tokens} leaves no room for a prompt: the model's context has "
            f"{engine.checkpoint.max_length} tokens"
        )
    return [engine.request_builder.encode(text)[:room] for text in texts]


@torch.inference_mode()
def generate(model: PreTrainedModel, prompt: list[int], **settings: Any) -> list[int]:
    """New tokens of transformers' `generate`."""
    inputs = torch.tensor([prompt], device=model.device)
    output = model.generate(inputs, attention_mask=torch.ones_like(inputs), **settings)
    return output[0, len(prompt) :].tolist()


def progress(items: Sequence[T], description: str, unit: str = "prompt") -> Iterator[T]:
    """The items, with a bar on stderr."""
    yield from tqdm(items, desc=description, unit=unit, file=sys.stderr, dynamic_ncols=True)


def describe_run() -> dict[str, Any]:
    """Command line, date, hardware and versions: what a figure means nothing without."""
    module = Path(sys.argv[0]).stem
    return {
        "command": " ".join(["python -m", f"benchmarks.{module}", *map(_without_folder, sys.argv[1:])]),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "cpu": processor_name(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }


def _without_folder(argument: str) -> str:
    """Where a file lay on the machine that measured is nobody's business."""
    return Path(argument).name if Path(argument).is_absolute() else argument


def markdown_table(columns: Sequence[str], rows: Iterable[Sequence[Any]], num_text: int = 1) -> str:
    """Reads well as text, too. Columns after the first `num_text` are aligned to the right."""
    aligned = ["left" if column < num_text else "right" for column in range(len(columns))]
    return tabulate(list(rows), headers=columns, tablefmt="pipe", colalign=aligned, disable_numparse=True)


def publish(folder: Path, name: str, title: str, body: str, data: dict[str, Any], figure: Figure | None = None) -> None:
    """Prints the body and writes NAME.md, NAME.json and, of a figure, NAME.svg, with the description of the run."""
    run = describe_run()
    described = "\n".join(f"- {key}: {value}" for key, value in run.items() if key != "command" and value is not None)
    folder.mkdir(parents=True, exist_ok=True)
    shown = body
    if figure is not None:
        figure.savefig(folder / f"{name}.svg", metadata={"Date": None})
        shown = f"![{title}]({name}.svg)\n\n{body}"
    text = f"# {title}\n\n    {run['command']}\n\n{described}\n\n{shown}\n"
    (folder / f"{name}.md").write_text(text, encoding="utf-8")
    (folder / f"{name}.json").write_text(json.dumps({"run": run, **data}, indent=1) + "\n", encoding="utf-8")
    print(body)
    print(f"written to {folder / name}.md, .json{'' if figure is None else ' and .svg'}", file=sys.stderr)
