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
from typing import Any, TypeVar

import torch
import transformers
from tabulate import tabulate
from tqdm import tqdm
from transformers import AutoModelForCausalLM, PreTrainedModel

from lp import Engine
from lp.model.checkpoint import DTYPES

T = TypeVar("T")


def make_parser(description: str | None) -> argparse.ArgumentParser:
    """With the options that every benchmark on prompts has."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--prompts", type=Path, required=True, help="JSONL file, a text under the key `prompt` in each line"
    )
    parser.add_argument("--model", default="demo/python-11m", help="checkpoint folder (default demo/python-11m)")
    parser.add_argument("--limit", type=int, default=100, help="prompts, from the file's beginning (default 100)")
    parser.add_argument("--max-new-tokens", type=int, default=128)
    parser.add_argument("--device", default="cpu", help="auto, cpu or cuda (default cpu)")
    parser.add_argument("--threads", type=int, default=1, help="of torch (default 1)")
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results"), help="folder of the result files")
    return parser


def read_prompts(path: Path, limit: int) -> list[str]:
    with open(path, encoding="utf-8") as lines:
        prompts = [json.loads(line)["prompt"] for _, line in zip(range(limit), lines)]
    if not prompts:
        raise SystemExit(f"{path} holds no prompts")
    return prompts


def load_both(path: str, dtype: str, device: str) -> tuple[Engine, PreTrainedModel]:
    """A checkpoint as the engine has it, and as transformers runs it by itself."""
    engine = Engine.from_pretrained(path, dtype, device)
    model = AutoModelForCausalLM.from_pretrained(path, dtype=DTYPES[dtype])
    return engine, model.to(engine.checkpoint.model.device).eval()


def encode(engine: Engine, texts: Sequence[str], max_new_tokens: int) -> list[list[int]]:
    """Token ids, cut where they would leave no room for the new tokens."""
    room = engine.checkpoint.model.max_length - max_new_tokens
    return [engine.preparation.encode(text)[:room] for text in texts]


@torch.inference_mode()
def generate(model: PreTrainedModel, prompt: list[int], **settings: Any) -> list[int]:
    """New tokens of transformers' `generate`."""
    inputs = torch.tensor([prompt], device=model.device)
    output = model.generate(inputs, attention_mask=torch.ones_like(inputs), **settings)
    return output[0, len(prompt) :].tolist()


def progress(items: Sequence[T], description: str) -> Iterator[T]:
    """The items, with a bar on stderr."""
    yield from tqdm(items, desc=description, unit="prompt", file=sys.stderr, dynamic_ncols=True)


def describe_run() -> dict[str, Any]:
    """Command line, date, hardware and versions: what a figure means nothing without."""
    module = Path(sys.argv[0]).stem
    return {
        "command": " ".join(["python -m", f"benchmarks.{module}", *map(_without_folder, sys.argv[1:])]),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "cpu": cpu_model(),
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


def cpu_model() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def markdown_table(columns: Sequence[str], rows: Iterable[Sequence[Any]], num_text: int = 1) -> str:
    """Reads well as text, too. Columns after the first `num_text` are aligned to the right."""
    aligned = ["left" if column < num_text else "right" for column in range(len(columns))]
    return tabulate(list(rows), headers=columns, tablefmt="pipe", colalign=aligned, disable_numparse=True)


def publish(folder: Path, name: str, title: str, body: str, data: dict[str, Any]) -> None:
    """Prints the body and writes NAME.md and NAME.json, both with the description of the run."""
    run = describe_run()
    described = "\n".join(f"- {key}: {value}" for key, value in run.items() if key != "command" and value is not None)
    folder.mkdir(parents=True, exist_ok=True)
    text = f"# {title}\n\n    {run['command']}\n\n{described}\n\n{body}\n"
    (folder / f"{name}.md").write_text(text, encoding="utf-8")
    (folder / f"{name}.json").write_text(json.dumps({"run": run, **data}, indent=1) + "\n", encoding="utf-8")
    print(body)
    print(f"written to {folder / name}.md and .json", file=sys.stderr)
