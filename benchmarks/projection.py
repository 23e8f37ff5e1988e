"""Lookahead and tensor parallelism on 1 to 8 devices, PROJECTED from a machine that has fewer.

    python -m benchmarks.projection --prompts prompts.jsonl --limit 5

Real texts are decoded; one device computes each rank's part of every step by itself, in turn. A step is charged its
slowest part and its communication: a latency for each collective and the bytes over a link
(benchmarks/projections/network.py). Under lookahead parallelism (lp) that is one exchange of answers; under tensor
parallelism (tp) also the collectives of every layer. Parts take the median of --repeats recordings.

So a projection supposes that devices do not disturb one another (memory bandwidth, heat, noise), and that a collective
takes the same latency however many ranks there are. As many real ranks as this machine has room for are measured beside
it. Degrees of tp that do not divide the model are left out, and named.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.projections.network import LoneRank, Network
from benchmarks.projections.projecting import Case, Projection, project
from benchmarks.projections.projection_report import AUTOREGRESSIVE, describe, plot, to_json
from benchmarks.projections.real_ranks import measure_all, room_for_ranks
from benchmarks.projections.virtual_ranks import Recording, record, replay
from benchmarks.shared.greedy import WARM_UP, check_all
from benchmarks.shared.report import load_engine, make_parser, parse, progress, publish, read_prompts, triple
from launch.prompts.workloads import WorkloadSettings
from launch.sweep.settings import BenchSettings
from lp import Autoregressive, Engine, Lookahead, Sampling
from lp.methods import DecodeSettings
from lp.model.causal import CausalModel
from lp.model.checkpoint import DTYPES, ModelSettings, load
from parallel.shards.tensor import read_sharded

EXCHANGE_COST = Path(__file__).with_name("results") / "exchange_cost-2-ranks.json"


@dataclass(frozen=True)
class Shard:
    """What one rank of a tensor-parallel group holds."""

    model: CausalModel
    collectives: LoneRank


def main() -> None:
    parser = make_arguments()
    arguments = parse(parser)
    methods = make_methods(arguments.settings)
    check_arguments(parser, arguments, methods)
    networks = [Network(latency, arguments.gb_per_s) for latency in arguments.latency_us or [known_latency_us(parser)]]
    texts = read_prompts(arguments.prompts, arguments.limit)
    engine = load_engine(arguments.model, arguments.dtype, arguments.device)
    prompts = encode_whole(engine, texts, arguments.max_new_tokens)
    shards, notes = load_shards(arguments)
    projections = project_all(engine, methods, shards, prompts, arguments)
    cases = [one.case for one in projections if one.case.ranks <= arguments.measure_up_to]
    measured, failures = measure_all(cases, methods, settings_of(arguments))
    notes = [
        f"{len(texts)} prompts, up to {arguments.max_new_tokens} new tokens each, greedy; medians of "
        f"{arguments.repeats} recordings.",
        *notes,
        *failures,
    ]
    name = engine.checkpoint.name
    publish(
        arguments.output,
        f"projection-{name}-{arguments.dtype}",
        f"PROJECTION, not measured: lp and tp on up to {max(arguments.ranks)} devices, {name}, {arguments.dtype}",
        describe(projections, measured, networks, notes),
        {
            "networks": [asdict(network) for network in networks],
            "projections": [to_json(one, networks, measured) for one in projections],
            "notes": notes,
        },
        plot(projections, measured, networks, method=list(methods)[1]),
    )


def make_arguments() -> argparse.ArgumentParser:
    parser = make_parser(__doc__)
    parser.set_defaults(limit=5)
    parser.add_argument("--dtype", default="float32", choices=DTYPES)
    parser.add_argument("--ranks", type=int, nargs="+", default=list(range(1, 9)), metavar="R")
    parser.add_argument(
        "--settings",
        type=triple,
        nargs="+",
        default=[(7, 5, 7), (15, 5, 15), (30, 5, 30)],
        metavar="W,N,G",
        help="of lookahead; more than one lets spare devices buy more window (default 7,5,7 15,5,15 30,5,30)",
    )
    parser.add_argument("--repeats", type=int, default=3, help="recordings of each text (default %(default)s)")
    parser.add_argument(
        "--latency-us",
        type=float,
        nargs="+",
        metavar="US",
        help="charged for a collective, a panel for each (default: shared memory in benchmarks/results/exchange_cost)",
    )
    parser.add_argument("--gb-per-s", type=float, default=10.0, help="of each rank's link (default %(default)s)")
    parser.add_argument("--measure-up-to", type=int, metavar="R", help="real ranks (default: one a core, or a GPU)")
    return parser


def make_methods(settings: list[tuple[int, int, int]]) -> dict[str, DecodeSettings]:
    """Autoregressive decoding, then lookahead at each setting."""
    lookahead = {str(numbers): Lookahead(*numbers) for numbers in settings}
    return {AUTOREGRESSIVE: Autoregressive(), **lookahead}


def check_arguments(
    parser: argparse.ArgumentParser, arguments: argparse.Namespace, methods: dict[str, DecodeSettings]
) -> None:
    if min(arguments.ranks) < 1 or arguments.repeats < 1:
        parser.error("--ranks and --repeats must be at least 1")
    if min(arguments.latency_us or [0]) < 0 or arguments.gb_per_s <= 0:
        parser.error("--latency-us must not be negative, --gb-per-s must be positive")
    arguments.ranks = sorted(set(arguments.ranks))
    if arguments.measure_up_to is None:
        arguments.measure_up_to = room_for_ranks(arguments.device, arguments.threads)
    try:
        check_all(methods)
    except ValueError as error:
        parser.error(str(error))


def known_latency_us(parser: argparse.ArgumentParser) -> float:
    """Median of an exchange in shared memory after 5 ms of work, as benchmarks.exchange_cost has measured it."""
    try:
        costs = json.loads(EXCHANGE_COST.read_text(encoding="utf-8"))["costs"]
        return next(cost["median_us"] for cost in costs if cost["exchange"] == "shm" and cost["work_ms"] == 5)
    except (OSError, StopIteration):
        parser.error(f"{EXCHANGE_COST.name} has no figure for shm after 5 ms of work: give --latency-us")


def encode_whole(engine: Engine, texts: list[str], max_new_tokens: int) -> list[list[int]]:
    """Token ids. Ends the program if a prompt does not fit: real ranks are given texts, so none is cut."""
    prompts = [engine.request_builder.encode(text) for text in texts]
    context = engine.checkpoint.max_length
    for number, prompt in enumerate(prompts, start=1):
        if len(prompt) + max_new_tokens > context:
            raise SystemExit(
                f"prompt {number} has {len(prompt)} tokens, which with --max-new-tokens {max_new_tokens} do not fit "
                f"the model's context of {context}: use shorter prompts or fewer new tokens"
            )
    return prompts


def load_shards(arguments: argparse.Namespace) -> tuple[dict[int, Shard], list[str]]:
    """By the degree; and which degrees are left out, and why."""
    shards, notes = {}, []
    for degree in [ranks for ranks in arguments.ranks if ranks > 1]:
        collectives = LoneRank(degree)
        settings = ModelSettings(arguments.model, arguments.dtype, arguments.device)
        try:
            shards[degree] = Shard(load(settings, reader=read_sharded(collectives)).model, collectives)
        except ValueError as error:
            notes.append(f"tp on {degree} devices is left out: {error}")
    return shards, notes


def project_all(
    engine: Engine,
    methods: dict[str, DecodeSettings],
    shards: dict[int, Shard],
    prompts: list[list[int]],
    arguments: argparse.Namespace,
) -> list[Projection]:
    """single, lp, tp, each by its ranks. All cases take turns on a text, recording after recording."""
    several = [ranks for ranks in arguments.ranks if ranks > 1]

    def one_round(prompt: list[int], max_new_tokens: int) -> Iterator[tuple[Case, Recording]]:
        for name, how in methods.items():
            single = record(engine.checkpoint, 1, how, prompt, max_new_tokens)
            yield Case("single", 1, name), single
            for ranks in several if name != AUTOREGRESSIVE else []:
                yield Case("lp", ranks, name), record(engine.checkpoint, ranks, how, prompt, max_new_tokens)
            for degree, shard in shards.items():
                yield Case("tp", degree, name), replay(shard.model, shard.collectives, single)

    cases: dict[Case, list[list[Recording]]] = {case: [] for case, _ in one_round(prompts[0], WARM_UP)}
    for prompt in progress(prompts, "recording steps"):
        for texts in cases.values():
            texts.append([])
        for _ in range(arguments.repeats):
            for case, recording in one_round(prompt, arguments.max_new_tokens):
                cases[case][-1].append(recording)
    found = [project(case, texts) for case, texts in cases.items()]
    return sorted(found, key=lambda one: (["single", "lp", "tp"].index(one.case.mode), one.case.ranks))


def settings_of(arguments: argparse.Namespace) -> BenchSettings:
    """Of real ranks, to do what the projection does."""
    return BenchSettings(
        model=ModelSettings(arguments.model, arguments.dtype, arguments.device),
        sampling=Sampling(temperature=0.0),
        workload=WorkloadSettings(
            path=arguments.prompts, limit=arguments.limit, max_new_tokens=arguments.max_new_tokens
        ),
        ignore_eos=False,
        cores_per_rank=arguments.threads,
    )


if __name__ == "__main__":
    main()
