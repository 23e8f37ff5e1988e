"""Measures a step's time by its rows, its parts, and the least time that the machine allows.

    python -m benchmarks.step_time --model demo/python-11m
    python -m benchmarks.step_time --config llama-7b --dtype bfloat16 --device cuda --cached 1024,4096,16384
    python -m benchmarks.step_time --model gemma3-270m --cached 8192,32768 --rows 1,16,64 --share 2,4 --no-parts

A step is one forward pass of a tree on top of a number of cached tokens, with logits for all of its rows. Planning,
sampling and the exchange are measured separately (benchmarks/steps/host_work.py, benchmarks/shared/exchange_timing.py).
With --config the weights are random and made on the device, so that real sizes need no checkpoint.

With --share the largest parts of these steps are measured as well, if so many ranks share them, and charged an
exchange: what lookahead parallelism gains on devices that do not share a memory. With one thread on a CPU all times are
processor time.
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

from benchmarks.projections.network import add_exchange
from benchmarks.projections.rank_cost import share_of
from benchmarks.projections.streams.curves import largest_part
from benchmarks.shared.exchange_timing import ExchangeCost, ExchangePlan, measure_exchanges
from benchmarks.shared.filled_cache import fill_cache
from benchmarks.shared.inputs import find_model, read_prompts
from benchmarks.shared.options import add_output, add_stored, add_threads, ascending_numbers, make_parser, parse
from benchmarks.shared.report import progress, publish
from benchmarks.shared.shapes import SHAPES, describe_shape
from benchmarks.steps.forward_parts import ForwardParts, measure_parts
from benchmarks.steps.host_work import HostWork, measure_host_work
from benchmarks.steps.machine_rates import RateGauge
from benchmarks.steps.measured_model import load_measured, make_measured
from benchmarks.steps.step_curve import fastest_variant, make_tree, measure_curve
from benchmarks.steps.step_floor import StepFloor
from benchmarks.steps.step_time_report import SharedSteps, StepTimeResults, describe, plot
from benchmarks.steps.variants import ModelVariant, make_variant, with_marks
from lp.kv_cache.cache import KVCache
from lp.model.causal import CausalModel
from lp.model.checkpoint import DTYPES, Checkpoint
from lp.model.compilation import CompileMode
from lp.model.gguf import unpacked_folder
from lp.model.kernels import AttentionKind

# Numbers of rows at which a forward pass is taken apart.
PARTS_ROWS = (1, 64)
# Rows per step while the host's work is measured, and rows whose answers the measured exchange carries.
HOST_ROWS = 64
# Answers for each row that decode=auto asks for, and that an exchange carries.
CANDIDATES = 8
# Average load of a core over the last minute up to which a machine counts as idle.
IDLE = 0.5
# Longest work before a measured exchange: longer work does not make the exchange slower.
LONGEST_WORK_MS = 20.0


def main() -> None:
    arguments = parse_arguments()
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # otherwise the profiler prints each start and stop
    try:
        with open_model(arguments) as (checkpoint, folder):
            results = run(checkpoint, folder, arguments)
    except ValueError as error:
        raise SystemExit(str(error)) from None
    on = "" if checkpoint.model.device.type == "cpu" else f"-{checkpoint.model.device.type}"
    name = f"step_time-{checkpoint.name}-{arguments.dtype}{on}{'-shared' if arguments.share else ''}"
    title = f"The time of a step by its rows: {checkpoint.name}, {arguments.dtype}"
    publish(arguments.output, name, title, describe(results), results.to_dict(), plot(results))
    lines = [json.dumps(asdict(point)) for point in results.points]
    (arguments.output / f"{name}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")


def parse_arguments() -> argparse.Namespace:
    parser = make_parser(__doc__)
    model = parser.add_mutually_exclusive_group()
    model.add_argument(
        "--model", default="demo/python-11m", help="folder, hub id, smollm2 or gemma3-270m (default %(default)s)"
    )
    model.add_argument("--config", help=f"random weights: {', '.join(SHAPES)}, a config.json, a folder or a hub id")
    parser.add_argument("--dtype", default="float32", choices=DTYPES, help="format of the model (default %(default)s)")
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda (default %(default)s)")
    add_threads(parser)
    sizes = [1, 2, 4, 8, 16, 32, 64, 128, 256]
    parser.add_argument(
        "--rows", type=ascending_numbers, default=sizes, metavar="R,R,...", help="default 1,2,4,...,256"
    )
    parser.add_argument(
        "--cached", type=ascending_numbers, default=[256], metavar="C,C,...", help="cached tokens (default 256)"
    )
    parser.add_argument("--attention", nargs="+", default=["auto"], choices=list(AttentionKind), help="default auto")
    parser.add_argument("--compile", nargs="+", default=["off", "on"], choices=["off", "on"], help="default both")
    parser.add_argument(
        "--share", type=ascending_numbers, default=[], metavar="R,R,...",
        help="numbers of ranks of which each computes a part of a step",
    )  # fmt: skip
    add_exchange(parser, "of a shared step")
    parser.add_argument("--rounds", type=int, default=9, help="measurements of each point (default %(default)s)")
    parser.add_argument(
        "--no-parts", action="store_true", help="measure only the time by rows, not what a step is made of"
    )
    parser.add_argument(
        "--ranks", type=int, default=2, help="ranks of the exchange; 1 leaves it out (default %(default)s)"
    )
    parser.add_argument(
        "--limit", type=int, default=4, help="prompts of our own workload for the host's work (default %(default)s)"
    )
    parser.add_argument(
        "--max-new-tokens", type=int, default=128, help="new tokens for each prompt (default %(default)s)"
    )
    add_stored(parser)
    add_output(parser)
    arguments = parse(parser)
    if min(arguments.rounds, arguments.ranks) < 1:
        parser.error("--rounds and --ranks must be at least 1")
    return arguments


def open_model(arguments: argparse.Namespace) -> AbstractContextManager[tuple[Checkpoint, Path]]:
    """The model to measure, and a folder for its compiled code."""
    num_positions = arguments.cached[-1] + arguments.rows[-1]
    if arguments.config is None:
        found = find_model(arguments.model)
        folder = found if arguments.stored else unpacked_folder(found)
        return load_measured(folder, arguments.dtype, arguments.device, num_positions)
    num_cached = sum(arguments.cached) + len(arguments.cached) * arguments.rows[-1]
    num_compiled = len(arguments.attention) + (not arguments.no_parts) if "on" in arguments.compile else 0
    return make_measured(arguments.config, arguments.dtype, arguments.device, num_positions, num_cached, num_compiled)


def run(checkpoint: Checkpoint, folder: Path, arguments: argparse.Namespace) -> StepTimeResults:
    """Raises ValueError if the model can be run in none of the variants."""
    model = checkpoint.model
    others = note_other_work()
    models, notes = make_variants(model, folder, arguments)
    gauge = RateGauge(model.device, model.dtype)
    caches = {cached: fill_cache(model, cached, arguments.rows[-1]) for cached in arguments.cached}
    sizes = {largest_part(rows, ranks) for rows in arguments.rows for ranks in [1, *arguments.share]}
    points, rates = measure_curve(models, caches, sorted(sizes), arguments.rounds, gauge)
    floor = StepFloor(share_of(model.model.config, model.dtype), model.dtype.itemsize, rates)
    shared = SharedSteps(arguments.rows, arguments.share, arguments.exchange_us * 1e-6)
    results = StepTimeResults(describe_shape(model.model.config), points, floor, others + notes, shared)
    if arguments.no_parts:
        return results
    host = measure_host(replace(checkpoint, model=models[fastest_variant(points)]), arguments)
    exchange = measure_exchange(arguments.ranks, host) if arguments.ranks > 1 else None
    return replace(results, splits=measure_all_parts(models, caches, arguments.rows), host=host, exchange=exchange)


def note_other_work() -> list[str]:
    """A note if other programs use the same cores, which makes the figures of a run doubtful."""
    load, cores = psutil.getloadavg()[0], psutil.cpu_count() or 1
    if load < IDLE * cores:
        return []
    return [f"Other programs ran on this machine when the measurement began: load {load:.1f} on {cores} cores"]


def make_variants(
    model: CausalModel, folder: Path, arguments: argparse.Namespace
) -> tuple[dict[str, CausalModel], list[str]]:
    """The model in each variant, by name, and notes on which variants are left out and why."""
    models: dict[str, CausalModel] = {}
    notes = []
    wanted = [
        ModelVariant(AttentionKind(kind), CompileMode(mode))
        for kind in arguments.attention
        for mode in arguments.compile
    ]
    for variant in progress(wanted, "preparing", unit="variant"):
        try:
            own = make_variant(variant, model, folder)
            models[variant.name(own)] = own
        except ValueError as error:
            notes.append(f"attention {variant.attention}, compile {variant.compile}: left out ({error})")
    if not models:
        raise ValueError("\n".join(["the model can be run in none of these variants:", *notes]))
    return models, notes


def measure_all_parts(
    models: dict[str, CausalModel], caches: dict[int, KVCache], rows: list[int]
) -> list[ForwardParts]:
    """The parts of a forward pass at those of PARTS_ROWS that were measured, or else at the most rows."""
    sizes = [size for size in PARTS_ROWS if size in rows] or rows[-1:]
    parts = []
    for name, model in progress(list(models.items()), "taking apart", unit="variant"):
        with TemporaryDirectory() as temporary:
            marked = with_marks(model, Path(temporary))
        for cache in caches.values():
            parts += [measure_parts(name, model, marked, cache, make_tree(model, size)) for size in sizes]
    return parts


def measure_host(checkpoint: Checkpoint, arguments: argparse.Namespace) -> HostWork:
    """Measures the host's work on prompts that are cut to the context.

    The tokenizer may be another model's, so token ids are reduced to the model's vocabulary.
    """
    model = checkpoint.model
    room = max(1, model.max_length - arguments.max_new_tokens)
    texts = [checkpoint.tokenizer.encode(text)[:room] for text in read_prompts(None, arguments.limit)]
    prompts = [[token % model.vocab_size for token in text] for text in texts]
    return measure_host_work(checkpoint, prompts, HOST_ROWS, arguments.max_new_tokens)


def measure_exchange(num_ranks: int, host: HostWork) -> ExchangeCost:
    """Measures the exchange of the answers for a step's rows, shared equally, after as much work as a step is."""
    num_bytes = 4 * (CANDIDATES * HOST_ROWS // num_ranks)
    work_ms = min(LONGEST_WORK_MS, 1000 * host.step_s)
    (cost,) = measure_exchanges(ExchangePlan(num_ranks, ["shm"], num_bytes, [work_ms], rounds=100))
    return cost


if __name__ == "__main__":
    main()
