"""Measures everything that the README says of a real model, and goes on where a stopped run was.

    python -m benchmarks.real_model --prompts FOLDER

FOLDER holds humaneval.jsonl, gsm8k.jsonl and spec_bench.jsonl, or some of them; without --prompts, the project's own
workload is asked. The parts are `index` (an index of answers, made from other prompts), `texts` (identity with
`generate`, differing texts in bfloat16, tokens per step, what each source of drafts earned, speed), `step curve`,
`ranks` (two lookahead-parallel ranks over one) and `first token`. With the defaults all of it takes about
90 minutes on two idle cores.

Every measurement is kept as soon as it is done, in real_model-NAME.measurements.json in --output. A second run with
the same options does only what is missing; --fresh begins anew. At the end, or after Ctrl-C, a report of all that is
kept is printed and written, with a plot. Exit status 1: a measurement failed, or texts differ in float32.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

from benchmarks.real import curves, first_token, indexing, ranks, texts, texts_report
from benchmarks.real.settings import RealModelSettings
from benchmarks.real.tasks import Figures, MeasurementStore, Task, measure_all
from benchmarks.real.texts import LoadedModel
from benchmarks.shared.categories import read_categories
from benchmarks.shared.options import add_output, add_threads, make_parser, parse
from benchmarks.shared.report import bullets, publish
from launch.config import resources
from lp.model.compilation import CompileMode
from lp.model.gguf import unpacked_folder
from lp.platform.processor import processor_name

# The parts that run other processes, in their order, and the titles of their sections.
OTHERS: dict[ModuleType, str] = {
    curves: "The time of a step by its rows",
    ranks: "Two ranks of one core over one rank of one core",
    first_token: "From the command to the first token",
}
PARTS = [indexing.PART, texts.PART, *(module.PART for module in OTHERS)]


def main() -> None:
    arguments = parse_arguments()
    try:
        settings = make_settings(arguments)
        store = MeasurementStore(
            arguments.output / f"real_model-{settings.model.name}.measurements.json", arguments.fresh, processor_name()
        )
        failures, interrupted = measure(settings, store, arguments.only or PARTS)
    except ValueError as error:
        raise SystemExit(str(error)) from None
    kept = {part: found for part, found in collect(settings, store).items() if found}
    different = texts_report.different_in_float32(kept.get(texts.PART, {}))
    failed = [f"{key}: {reason}" for key, reason in failures.items()]
    failed += [f"texts of {name} differ from those of generate in float32" for name in different]
    publish(
        arguments.output,
        f"real_model-{settings.model.name}",
        f"A real model: {settings.model.name}",
        describe(kept, settings, failed),
        {"parts": kept, "failed": failed},
        texts_report.plot(kept.get(texts.PART, {})),
    )
    if interrupted:
        print("interrupted; the same command does what is left", file=sys.stderr)
        raise SystemExit(130)
    if failed:
        raise SystemExit(1)


def parse_arguments() -> argparse.Namespace:
    parser = make_parser(__doc__)
    parser.add_argument(
        "--model", default=resources.SMOLLM2, help="checkpoint folder or GGUF file (default %(default)s)"
    )
    parser.add_argument(
        "--small",
        type=Path,
        default=Path("demo/python-11m"),
        help="second model of the step curve (default %(default)s)",
    )
    parser.add_argument("--prompts", type=Path, metavar="FOLDER", help="folder with the prompts (default: our own)")
    parser.add_argument("--limit", type=int, default=64, help="prompts over all categories (default %(default)s)")
    parser.add_argument(
        "--sampled", type=int, default=3, help="prompts of each category that are sampled (default %(default)s)"
    )
    parser.add_argument(
        "--indexed", type=int, default=112, help="further prompts, for the index of answers (default %(default)s)"
    )
    parser.add_argument("--max-new-tokens", type=int, default=64, help="for each prompt (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=2, help="of ranks and of starts (default %(default)s)")
    parser.add_argument("--compile", default="auto", choices=list(CompileMode), help="default %(default)s")
    parser.add_argument("--only", action="append", choices=PARTS, metavar="PART", help=f"one of: {', '.join(PARTS)}")
    parser.add_argument("--fresh", action="store_true", help="forget what was measured before")
    add_threads(parser)
    add_output(parser)
    parser.set_defaults(threads=2)
    arguments = parse(parser)
    if min(arguments.rounds, arguments.sampled) < 1:
        parser.error("--rounds and --sampled must be at least 1")
    return arguments


def make_settings(arguments: argparse.Namespace) -> RealModelSettings:
    """Raises ValueError if the model cannot be had."""
    return RealModelSettings(
        model=Path(unpacked_folder(resources.resolve(arguments.model))),
        small=arguments.small,
        asked=read_categories(arguments.prompts, arguments.limit),
        indexed=read_categories(arguments.prompts, arguments.indexed, skip=arguments.limit),
        output=arguments.output,
        num_sampled=arguments.sampled,
        max_new_tokens=arguments.max_new_tokens,
        threads=arguments.threads,
        rounds=arguments.rounds,
        compile=str(arguments.compile),
    )


def all_tasks(settings: RealModelSettings, loaded: LoadedModel) -> list[Task]:
    """The measurements of all parts, in their order."""
    others = [task for module in OTHERS for task in module.tasks(settings)]
    return [*indexing.tasks(settings), *texts.tasks(settings, loaded), *others]


def measure(settings: RealModelSettings, store: MeasurementStore, parts: list[str]) -> tuple[dict[str, str], bool]:
    """Does what is missing. Returns the failures, and whether the user interrupted it."""
    loaded = LoadedModel(settings)

    def begin(task: Task, number: int, total: int) -> None:
        print(f"[{number}/{total}] {task.key}", file=sys.stderr, flush=True)
        if task.part != texts.PART:
            loaded.release()

    try:
        return measure_all([task for task in all_tasks(settings, loaded) if task.part in parts], store, begin), False
    except KeyboardInterrupt:
        return {}, True


def collect(settings: RealModelSettings, store: MeasurementStore) -> dict[str, dict[str, Figures]]:
    """All kept figures of these settings, by part and by the measurement's name."""
    kept: dict[str, dict[str, Figures]] = {part: {} for part in PARTS}
    for task in all_tasks(settings, LoadedModel(settings)):
        if (figures := store.figures(task)) is not None:
            kept[task.part][task.name] = figures
    return kept


def describe(kept: Mapping[str, Mapping[str, Figures]], settings: RealModelSettings, failed: list[str]) -> str:
    sections = texts_report.describe(kept[texts.PART]) if texts.PART in kept else {}
    if indexing.PART in kept:
        sections["The index of answers"] = indexing.describe(kept[indexing.PART])
    for module, title in OTHERS.items():
        if module.PART in kept:
            sections[title] = module.describe(kept[module.PART])
    told = (
        f"{len(settings.asked)} prompts over all categories, up to {settings.max_new_tokens} new tokens each. "
        f"Threads of a rank that has the machine to itself: {settings.threads}."
    )
    wanted = Counter(task.part for task in all_tasks(settings, LoadedModel(settings)))
    done = {part: len(kept.get(part, {})) for part in PARTS}
    notes = [
        f"{part}: {done[part]} of {wanted[part]} measurements are done" for part in PARTS if done[part] < wanted[part]
    ]
    notes += [f"FAILED: {line}" for line in failed]
    parts = [told, *([bullets(notes)] if notes else [])]
    return "\n\n".join([*parts, *(f"## {title}\n\n{body}" for title, body in sections.items())])


if __name__ == "__main__":
    main()
