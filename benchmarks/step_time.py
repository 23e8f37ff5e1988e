"""The time of a step by its rows, against the least that the machine allows, and what it is made of.

    python -m benchmarks.step_time --model demo/python-11m
    python -m benchmarks.step_time --config llama-7b --dtype bfloat16 --device cuda --cached 1024,4096,16384

A step is one forward of a tree on so many cached tokens, with logits for all of its rows; planning, sampling and the
exchange are measured apart (benchmarks/steps/host_work.py, benchmarks/exchange_cost.py). With --config the weights are
random and made on the device, so that real sizes need no checkpoint.
"""

from __future__ import annotations

import argparse
import json
import os
from contextlib import AbstractContextManager
from dataclasses import asdict, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil

from benchmarks import exchange_cost
from benchmarks.projections.arithmetic import share_of
from benchmarks.shared.measured_model import loaded, made
from benchmarks.shared.report import add_output, parse, progress, publish, read_prompts
from benchmarks.shared.shapes import SHAPES, describe_shape
from benchmarks.steps.floor import Floor, Gauge
from benchmarks.steps.host_work import HostWork, measure_host_work
from benchmarks.steps.step_curve import fastest_way, fill_cache, make_tree, measure
from benchmarks.steps.step_split import Split, split
from benchmarks.steps.step_time_report import StepTimeResults, describe, plot
from benchmarks.steps.variants import Variant, marked, run_in
from lp.model.causal import CausalModel
from lp.model.checkpoint import DTYPES, Checkpoint
from lp.model.fast.choose import CompileMode
from lp.model.kernels import AttentionKind
from lp.model.kv_cache import KVCache
from parallel.comm.channel import HEADER

SPLIT = (1, 64)
"""Rows at which a forward is split."""
HOST_ROWS = 64
"""Rows of the generation in which the host's work is measured, and of the exchange."""
CANDIDATES = 8
"""Answers for a row that decode=auto wants, and that an exchange carries."""
IDLE = 0.5
"""Load of a core, by the minute before, up to which a machine counts as idle."""
LONGEST_WORK_MS = 20.0
"""Before an exchange that is measured; longer work makes it no slower."""


def main() -> None:
    arguments = parse_arguments()
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # else the profiler tells of each start and stop
    try:
        with open_model(arguments) as (checkpoint, folder):
            results = run(checkpoint, folder, arguments)
    except ValueError as error:
        raise SystemExit(str(error)) from None
    on = "" if checkpoint.model.device.type == "cpu" else f"-{checkpoint.model.device.type}"
    name = f"step_time-{checkpoint.name}-{arguments.dtype}{on}"
    title = f"The time of a step by its rows: {checkpoint.name}, {arguments.dtype}"
    publish(arguments.output, name, title, describe(results), results.to_dict(), plot(results))
    lines = [json.dumps(asdict(point)) for point in results.points]
    (arguments.output / f"{name}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    model = parser.add_mutually_exclusive_group()
    model.add_argument("--model", default="demo/python-11m", help="folder or hub id (default %(default)s)")
    model.add_argument("--config", help=f"random weights: {', '.join(SHAPES)}, a config.json, a folder or a hub id")
    parser.add_argument("--dtype", default="float32", choices=DTYPES, help="default %(default)s")
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda (default %(default)s)")
    parser.add_argument("--threads", type=int, default=1, help="of torch (default %(default)s)")
    sizes = [1, 2, 4, 8, 16, 32, 64, 128, 256]
    parser.add_argument("--rows", type=numbers, default=sizes, metavar="R,R,...", help="default 1,2,4,...,256")
    parser.add_argument("--cached", type=numbers, default=[256], metavar="C,C,...", help="cached tokens (default 256)")
    parser.add_argument("--attention", nargs="+", default=["auto"], choices=list(AttentionKind), help="default auto")
    parser.add_argument("--compile", nargs="+", default=["off", "on"], choices=["off", "on"], help="default both")
    parser.add_argument("--rounds", type=int, default=9, help="measurements of each point (default %(default)s)")
    parser.add_argument("--no-parts", action="store_true", help="the curve alone, without what a step is made of")
    parser.add_argument("--ranks", type=int, default=2, help="of the exchange; 1 leaves it out (default %(default)s)")
    parser.add_argument("--limit", type=int, default=4, help="prompts of our own workload, for the host's work")
    parser.add_argument("--max-new-tokens", type=int, default=128, help="for each prompt (default %(default)s)")
    add_output(parser)
    arguments = parse(parser)
    if min(arguments.rounds, arguments.ranks) < 1:
        parser.error("--rounds and --ranks must be at least 1")
    return arguments


def numbers(text: str) -> list[int]:
    """Ascending whole numbers above 0, with commas between: the type of an option."""
    parts = text.split(",")
    if not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of whole numbers above 0, like 1,2,4")
    return sorted({int(part) for part in parts})


def open_model(arguments: argparse.Namespace) -> AbstractContextManager[tuple[Checkpoint, Path]]:
    num_positions = arguments.cached[-1] + arguments.rows[-1]
    if arguments.config is None:
        return loaded(arguments.model, arguments.dtype, arguments.device, num_positions)
    num_cached = sum(arguments.cached) + len(arguments.cached) * arguments.rows[-1]
    num_compiled = len(arguments.attention) + (not arguments.no_parts) if "on" in arguments.compile else 0
    return made(arguments.config, arguments.dtype, arguments.device, num_positions, num_cached, num_compiled)


def run(checkpoint: Checkpoint, folder: Path, arguments: argparse.Namespace) -> StepTimeResults:
    """Raises ValueError if the model can be run in none of the variants."""
    model = checkpoint.model
    others = note_other_work()
    models, notes = run_in_ways(model, folder, arguments)
    gauge = Gauge(model.device, model.dtype)
    caches = {cached: fill_cache(model, cached, arguments.rows[-1]) for cached in arguments.cached}
    points, rates = measure(models, caches, arguments.rows, arguments.rounds, gauge)
    floor = Floor(share_of(model.model.config, model.dtype), model.dtype.itemsize, rates)
    results = StepTimeResults(describe_shape(model.model.config), points, floor, others + notes)
    if arguments.no_parts:
        return results
    host = measure_host(replace(checkpoint, model=models[fastest_way(points)]), arguments)
    exchange = measure_exchange(arguments.ranks, host) if arguments.ranks > 1 else None
    return replace(results, splits=split_all(models, caches, arguments.rows), host=host, exchange=exchange)


def note_other_work() -> list[str]:
    """What makes the figures of a run doubtful: other programs on the same cores."""
    load, cores = psutil.getloadavg()[0], psutil.cpu_count() or 1
    if load < IDLE * cores:
        return []
    return [f"Other programs ran on this machine when the measurement began: load {load:.1f} on {cores} cores"]


def run_in_ways(
    model: CausalModel, folder: Path, arguments: argparse.Namespace
) -> tuple[dict[str, CausalModel], list[str]]:
    """By the variants' names; and what cannot be had here, and why."""
    models: dict[str, CausalModel] = {}
    notes = []
    wanted = [
        Variant(AttentionKind(kind), CompileMode(mode)) for kind in arguments.attention for mode in arguments.compile
    ]
    for way in progress(wanted, "making ready", unit="way"):
        try:
            own = run_in(way, model.model, model.max_length, model.eos, folder)
            models[way.name(own)] = own
        except ValueError as error:
            notes.append(f"attention {way.attention}, compile {way.compile}: left out ({error})")
    if not models:
        raise ValueError("\n".join(["the model can be run in none of these variants:", *notes]))
    return models, notes


def split_all(models: dict[str, CausalModel], caches: dict[int, KVCache], rows: list[int]) -> list[Split]:
    """At those of SPLIT that were measured, or else at the most rows."""
    sizes = [size for size in SPLIT if size in rows] or rows[-1:]
    splits = []
    for way, model in progress(list(models.items()), "splitting", unit="way"):
        with TemporaryDirectory() as temporary:
            with_marks = marked(model, Path(temporary))
        for cache in caches.values():
            splits += [split(way, model, with_marks, cache, make_tree(model, size)) for size in sizes]
    return splits


def measure_host(checkpoint: Checkpoint, arguments: argparse.Namespace) -> HostWork:
    """On prompts cut to the context, with ids that the model has, whose tokenizer may be another's."""
    model = checkpoint.model
    room = max(1, model.max_length - arguments.max_new_tokens)
    texts = [checkpoint.tokenizer.encode(text)[:room] for text in read_prompts(None, arguments.limit)]
    prompts = [[token % model.vocab_size for token in text] for text in texts]
    return measure_host_work(checkpoint, prompts, HOST_ROWS, arguments.max_new_tokens)


def measure_exchange(num_ranks: int, host: HostWork) -> exchange_cost.Cost:
    """Of the answers for a step's rows, shared equally; after as much work as a step is."""
    num_bytes = 4 * (HEADER + CANDIDATES * HOST_ROWS // num_ranks)
    work_ms = min(LONGEST_WORK_MS, 1000 * host.step_s)
    (cost,) = exchange_cost.measure(exchange_cost.Plan(num_ranks, ["shm"], num_bytes, [work_ms], rounds=100))
    return cost


if __name__ == "__main__":
    main()
