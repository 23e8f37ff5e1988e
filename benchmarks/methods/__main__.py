"""Measures every decoding method side by side: tokens per step, calls, speed, same texts.

    python -m benchmarks.methods --prompts FOLDER --limit 40 --rounds 3

FOLDER holds humaneval.jsonl, gsm8k.jsonl and spec_bench.jsonl, or some of them; without --prompts, the project's own
workload is asked. The methods are those of lp/methods.py, run as benchmarks/methods/ways.py says, with their default
settings unless their name says otherwise. They and transformers' `generate` take turns on every prompt, in an order
that rotates. A method that cannot be run is left out, and the output says why; --part gives what it lacks.

Every round is kept as soon as it is done: after an interruption the same command does only what is missing, --fresh
begins anew. Exit status 1: a text differs in float32 from that of `generate`. `python -m docs.website.methods` puts
the tables of benchmarks/results into docs/concepts/methods.md.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from functools import cached_property, partial
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from benchmarks.methods.rounds import MethodFigures, measure_round, summarise
from benchmarks.methods.ways import PARTS, Chosen, choose
from benchmarks.real.tasks import Figures, MeasurementStore, Task, measure_all
from benchmarks.shared.categories import CategoryPrompt, read_categories
from benchmarks.shared.inputs import encode, find_model
from benchmarks.shared.options import add_output, add_threads, make_parser, parse
from benchmarks.shared.report import bullets, markdown_table, publish
from lp import Engine
from lp.methods.registry import METHODS
from lp.model.checkpoint import DTYPES, pick_device
from lp.model.compilation import CompileMode
from lp.model.gguf import unpacked_folder
from lp.platform.disk_cache import digest
from lp.platform.processor import processor_name


def main() -> None:
    arguments = parse_arguments()
    try:
        chosen = choose(arguments.methods, arguments.part)
        models = Models(arguments, Path(unpacked_folder(find_model(arguments.model))))
        suffix = "-cuda" if models.device.type == "cuda" else ""
        name = f"methods-{models.path.name}-{arguments.dtype}{suffix}"
        store = MeasurementStore(arguments.output / f"{name}.measurements.json", arguments.fresh, models.processor)
        tasks = make_tasks(arguments, chosen, models)
        failures = measure_all(tasks, store, _begin)
    except ValueError as error:
        raise SystemExit(str(error)) from None
    except KeyboardInterrupt:
        raise SystemExit("interrupted; the same command does the rounds that are left") from None
    if failures:
        raise SystemExit("\n".join(f"{key}: {reason}" for key, reason in failures.items()))
    kept = [figures for task in tasks if (figures := store.figures(task))]
    figures = summarise(kept, chosen, len(models.asked))
    publish(
        arguments.output,
        name,
        f"Every decoding method: {models.path.name}, {arguments.dtype}",
        describe(figures, chosen, models, arguments),
        {
            "model": models.path.name,
            "dtype": arguments.dtype,
            "prompts": len(models.asked),
            "max_new_tokens": arguments.max_new_tokens,
            "rounds": arguments.rounds,
            "methods": [asdict(one) for one in figures],
            "skipped": chosen.skipped,
        },
    )
    if different := differing(figures, arguments.dtype):
        raise SystemExit(f"in float32 all texts must be those of generate, but some of {', '.join(different)} differ")


def parse_arguments() -> argparse.Namespace:
    parser = make_parser(__doc__)
    parser.add_argument("--model", default="smollm2", help="smollm2, or a checkpoint folder (default %(default)s)")
    parser.add_argument("--prompts", type=Path, metavar="FOLDER", help="folder with the prompts (default: our own)")
    parser.add_argument("--limit", type=int, default=40, help="prompts over all categories (default %(default)s)")
    parser.add_argument("--max-new-tokens", type=int, default=64, help="for each prompt (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds over all prompts (default %(default)s)")
    parser.add_argument("--dtype", default="float32", choices=DTYPES, help="format of the model (default %(default)s)")
    parser.add_argument("--methods", nargs="+", default=[*METHODS], metavar="METHOD", help="some of them (default all)")
    parser.add_argument(
        "--part",
        action="append",
        default=[],
        metavar="NAME=PATH",
        help=f"what a method needs beside the checkpoint: one of {', '.join(PARTS)}",
    )
    parser.add_argument("--device", default="cpu", help="auto, cpu or cuda (default %(default)s)")
    parser.add_argument("--compile", default="auto", choices=list(CompileMode), help="default %(default)s")
    parser.add_argument("--fresh", action="store_true", help="forget what was measured before")
    add_threads(parser)
    add_output(parser)
    parser.set_defaults(threads=2)
    arguments = parse(parser)
    if arguments.rounds < 1:
        parser.error(f"--rounds must be at least 1, not {arguments.rounds}")
    parts = dict(part.partition("=")[::2] for part in arguments.part)
    if wrong := [name for name, path in parts.items() if name not in PARTS or not path]:
        parser.error(f"--part {wrong[0]} is not NAME=PATH with one of the names {', '.join(PARTS)}")
    arguments.part = parts
    return arguments


class Models:
    """The checkpoint as this project runs it and as transformers does, loaded when first needed, and the prompts."""

    def __init__(self, arguments: argparse.Namespace, path: Path):
        """Ends the program with a message if there are no prompts."""
        self.arguments = arguments
        self.path = path
        self.device = pick_device(arguments.device)
        self.asked: list[CategoryPrompt] = read_categories(arguments.prompts, arguments.limit)

    @property
    def processor(self) -> str:
        """The name of the GPU, or of the processor, that computes the model."""
        return torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else processor_name()

    @cached_property
    def engine(self) -> Engine:
        """Raises ValueError if the checkpoint or a part cannot be used."""
        parts = {"index": "off", **{name: PARTS[name](path) for name, path in self.arguments.part.items()}}
        return Engine.from_pretrained(
            str(self.path), self.arguments.dtype, str(self.device), compile=self.arguments.compile, **parts
        )

    @cached_property
    def reference(self) -> PreTrainedModel:
        dtype = DTYPES[self.arguments.dtype]
        model = AutoModelForCausalLM.from_pretrained(self.path, dtype=dtype, use_safetensors=True)
        return model.to(self.device).eval()  # pyright: ignore[reportArgumentType]

    def measure_round(self, chosen: Chosen) -> Figures:
        texts = [one.for_model(self.engine.checkpoint.tokenizer) for one in self.asked]
        prompts = encode(self.engine, texts, self.arguments.max_new_tokens)
        return measure_round(self.engine, self.reference, chosen, prompts, self.arguments.max_new_tokens)


def make_tasks(arguments: argparse.Namespace, chosen: Chosen, models: Models) -> list[Task]:
    """One for each round. Its figures are those of `measure_round`."""
    asked = {
        "prompts": digest([one.text for one in models.asked]),
        "methods": {name: repr(settings) for name, (settings, _) in chosen.ways.items()},
        **{key: getattr(arguments, key) for key in ("max_new_tokens", "threads", "part")},
        "compile": str(arguments.compile),
    }
    measure = partial(models.measure_round, chosen)
    return [Task("methods", f"round {number}", asked, measure) for number in range(1, arguments.rounds + 1)]


def _begin(task: Task, number: int, total: int) -> None:
    print(f"[{number}/{total}] {task.name}", file=sys.stderr, flush=True)


def describe(figures: Sequence[MethodFigures], chosen: Chosen, models: Models, arguments: argparse.Namespace) -> str:
    counts = Counter(one.category for one in models.asked)
    by_category = ", ".join(f"{number} {name}" for name, number in counts.items())
    told = (
        f"{models.processor}. {len(models.asked)} prompts ({by_category}), up to {arguments.max_new_tokens} new "
        f"tokens each, greedy unless the method says otherwise. Threads: {arguments.threads}. Rounds, whose median "
        f"each speed is: {arguments.rounds}. Calls: of the model, for a text. Speed-ups: tokens per second, the "
        "reading of the prompt included, over those of our own autoregressive decoding and of `generate` in the same "
        "round. Same text: texts that equal those of `generate` with the same search, greedy or by beams."
    )
    columns = ["method", "tokens/step", "calls", "rows/step", "tokens/s", "over autoregressive", "over generate"]
    skipped = [f"{name} was left out: {reason}" for name, reason in chosen.skipped.items()]
    table = markdown_table([*columns, "same text"], [_row(one, chosen) for one in figures])
    return "\n\n".join([told, table, *([bullets(skipped)] if skipped else [])])


def _row(one: MethodFigures, chosen: Chosen) -> list[str]:
    same = f"{one.same_text}/{one.num_texts}" if one.same_text is not None else ""
    if one.method in chosen.ways and one.reference is None:
        same = chosen.ways[one.method][1].why_none
    return [
        one.method,
        f"{one.tokens_per_step:.2f}",
        f"{one.calls:.1f}",
        f"{one.rows_per_step:.1f}" if one.method in chosen.ways else "",
        f"{one.tokens_per_s:.1f}",
        f"{one.over_autoregressive:.2f}x",
        f"{one.over_generate:.2f}x",
        same,
    ]


def differing(figures: Sequence[MethodFigures], dtype: str) -> list[str]:
    """The methods whose texts are not those of their reference, in float32, where they must be."""
    if dtype != "float32":
        return []
    return [one.method for one in figures if one.same_text is not None and one.same_text < one.num_texts]


if __name__ == "__main__":
    main()
