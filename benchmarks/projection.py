"""Projects lookahead and tensor parallelism on 1 to 8 devices from a machine that has fewer.

    python -m benchmarks.projection --prompts prompts.jsonl --limit 5

One device decodes real texts and computes each rank's part of every step, one part after the other. A step is charged
its slowest part and its communication: a latency for each collective, and the time of the bytes over a link
(benchmarks/projections/network.py). Under lookahead parallelism (lp) the communication is one exchange of answers;
under tensor parallelism (tp) it also includes the collectives of every layer. The time of a part is the median of
--repeats recordings; with one thread on a CPU it is processor time.

No forward is compiled, since that of a tensor-parallel rank cannot be. A projection supposes that devices do not
disturb one another (memory bandwidth, heat, noise), and that the latency of a collective does not depend on the number
of ranks. The command also measures as many real ranks as this machine has room for. Degrees of tp by which the model
cannot be split are left out, and the output names them.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from tqdm import tqdm

from benchmarks.projections.lone_rank import LoneRank
from benchmarks.projections.network import Network
from benchmarks.projections.projected_speed import Projection, ProjectionCase, project
from benchmarks.projections.projection_report import describe, plot, to_json
from benchmarks.projections.real_ranks import measure_all, room_for_ranks
from benchmarks.projections.virtual_ranks import ReadSeconds, RecordedText, record, replay
from benchmarks.shared.decoded_texts import AUTOREGRESSIVE
from benchmarks.shared.greedy import WARM_UP, check_methods
from benchmarks.shared.inputs import load_engine, read_prompts
from benchmarks.shared.options import make_prompts_parser, parse, triple
from benchmarks.shared.report import publish
from benchmarks.shared.result_pages import read_tables
from launch.data.workloads import WorkloadSettings
from launch.sweep.settings import BenchSettings
from lp import Autoregressive, Engine, Lookahead, Sampling
from lp.model.causal import CausalModel
from lp.model.checkpoint import DTYPES, ModelSettings, load
from lp.model.compilation import CompileMode
from lp.request import DecodingMethod
from lp.runner.step_times.measure import StepTimesSource
from parallel.sharding.tensor import read_sharded

EXCHANGE_COST = Path(__file__).with_name("results") / "exchange_cost-2-ranks.md"


@dataclass(frozen=True)
class TensorShard:
    """What one rank of a tensor-parallel group holds, and the collectives that its model calls."""

    model: CausalModel
    collectives: LoneRank


def main() -> None:
    parser = make_arguments()
    arguments = parse(parser)
    methods = make_methods(arguments.settings)
    check_arguments(parser, arguments, methods)
    networks = [Network(latency, arguments.gb_per_s) for latency in arguments.latency_us or [known_latency_us(parser)]]
    texts = read_prompts(arguments.prompts, arguments.limit)
    engine = load_engine(arguments.model, arguments.dtype, arguments.device, CompileMode.off, StepTimesSource.off)
    prompts = encode_whole(engine, texts, arguments.max_new_tokens)
    shards, notes = load_shards(arguments)
    projections = project_all(engine, methods, shards, prompts, arguments)
    cases = [one.case for one in projections if one.case.ranks <= arguments.measure_up_to]
    measured, failures = measure_all(cases, methods, real_rank_settings(arguments))
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
    parser = make_prompts_parser(__doc__)
    parser.set_defaults(limit=5)
    parser.add_argument("--dtype", default="float32", choices=DTYPES, help="format of the model (default %(default)s)")
    parser.add_argument(
        "--ranks", type=int, nargs="+", default=list(range(1, 9)), metavar="R", help="default 1 2 3 4 5 6 7 8"
    )
    parser.add_argument(
        "--settings",
        type=triple,
        nargs="+",
        default=[(7, 5, 7), (15, 5, 15), (30, 5, 30)],
        metavar="W,N,G",
        help="settings of lookahead; with several, more devices can use larger windows (default 7,5,7 15,5,15 30,5,30)",
    )
    parser.add_argument("--repeats", type=int, default=3, help="recordings of each text (default %(default)s)")
    parser.add_argument(
        "--latency-us",
        type=float,
        nargs="+",
        metavar="US",
        help="charged for a collective, a panel for each (default: of shared memory, from benchmarks/results)",
    )
    parser.add_argument("--gb-per-s", type=float, default=10.0, help="speed of each rank's link (default %(default)s)")
    parser.add_argument(
        "--measure-up-to",
        type=int,
        metavar="R",
        help="most real ranks to measure (default: one for each GPU, or for every --threads cores)",
    )
    return parser


def make_methods(settings: list[tuple[int, int, int]]) -> dict[str, DecodingMethod]:
    """Autoregressive decoding, then lookahead at each setting."""
    lookahead = {str(numbers): Lookahead(*numbers) for numbers in settings}
    return {AUTOREGRESSIVE: Autoregressive(), **lookahead}


def check_arguments(
    parser: argparse.ArgumentParser, arguments: argparse.Namespace, methods: dict[str, DecodingMethod]
) -> None:
    if min(arguments.ranks) < 1 or arguments.repeats < 1:
        parser.error("--ranks and --repeats must be at least 1")
    if min(arguments.latency_us or [0]) < 0 or arguments.gb_per_s <= 0:
        parser.error("--latency-us must not be negative, --gb-per-s must be positive")
    arguments.ranks = sorted(set(arguments.ranks))
    if arguments.measure_up_to is None:
        arguments.measure_up_to = room_for_ranks(arguments.device, arguments.threads)
    check_methods(parser, methods.values())


def known_latency_us(parser: argparse.ArgumentParser) -> float:
    """The median that benchmarks.exchange_cost measured for an exchange in shared memory after 5 ms of work."""
    try:
        (costs,) = read_tables(EXCHANGE_COST)
        return next(float(cost["median"]) for cost in costs if cost["exchange"] == "shm" and cost["work"] == "5 ms")
    except (OSError, StopIteration):
        parser.error(f"{EXCHANGE_COST.name} has no figure for shm after 5 ms of work: give --latency-us")


def encode_whole(engine: Engine, texts: list[str], max_new_tokens: int) -> list[list[int]]:
    """Token ids of each text. Ends the program if one does not fit: real ranks get the texts, so none can be cut."""
    prompts = [engine.request_builder.encode(text) for text in texts]
    context = engine.checkpoint.max_length
    for number, prompt in enumerate(prompts, start=1):
        if len(prompt) + max_new_tokens > context:
            raise SystemExit(
                f"prompt {number} has {len(prompt)} tokens, which with --max-new-tokens {max_new_tokens} do not fit "
                f"the model's context of {context}: use shorter prompts or fewer new tokens"
            )
    return prompts


def model_settings(arguments: argparse.Namespace) -> ModelSettings:
    return ModelSettings(arguments.model, arguments.dtype, arguments.device, compile=CompileMode.off)


def load_shards(arguments: argparse.Namespace) -> tuple[dict[int, TensorShard], list[str]]:
    """A shard for each degree, and notes on which degrees are left out and why."""
    shards, notes = {}, []
    for degree in [ranks for ranks in arguments.ranks if ranks > 1]:
        collectives = LoneRank(degree)
        settings = model_settings(arguments)
        try:
            shards[degree] = TensorShard(load(settings, reader=read_sharded(collectives)).model, collectives)
        except ValueError as error:
            notes.append(f"tp on {degree} devices is left out: {error}")
    return shards, notes


def pick_clock(device: str, threads: int) -> ReadSeconds:
    """Processor time where one thread does all the work, as other programs do not disturb it; else the time of day."""
    return time.thread_time if device == "cpu" and threads == 1 else time.perf_counter


def project_all(
    engine: Engine,
    methods: dict[str, DecodingMethod],
    shards: dict[int, TensorShard],
    prompts: list[list[int]],
    arguments: argparse.Namespace,
) -> list[Projection]:
    """Projections of single, lp and tp, each sorted by ranks. All cases take turns on a text, once in each repeat."""
    several = [ranks for ranks in arguments.ranks if ranks > 1]
    clock = pick_clock(arguments.device, arguments.threads)

    def one_round(prompt: list[int], max_new_tokens: int) -> Iterator[tuple[ProjectionCase, RecordedText]]:
        for name, decode in methods.items():
            single = record(engine.checkpoint, 1, decode, prompt, max_new_tokens, clock)
            yield ProjectionCase("single", 1, name), single
            for ranks in several if name != AUTOREGRESSIVE else []:
                yield (
                    ProjectionCase("lp", ranks, name),
                    record(engine.checkpoint, ranks, decode, prompt, max_new_tokens, clock),
                )
            for degree, shard in shards.items():
                yield ProjectionCase("tp", degree, name), replay(shard.model, shard.collectives, single, clock)

    cases: dict[ProjectionCase, list[list[RecordedText]]] = {case: [] for case, _ in one_round(prompts[0], WARM_UP)}
    for texts in cases.values():
        texts.extend([] for _ in prompts)
    turns = [(number, prompt) for number, prompt in enumerate(prompts) for _ in range(arguments.repeats)]
    with tqdm(total=len(turns) * len(cases), desc="recording steps", unit="text", file=sys.stderr) as bar:
        for number, prompt in turns:
            for case, recording in one_round(prompt, arguments.max_new_tokens):
                cases[case][number].append(recording)
                bar.update()
    found = [project(case, texts) for case, texts in cases.items()]
    return sorted(found, key=lambda one: (["single", "lp", "tp"].index(one.case.mode), one.case.ranks))


def real_rank_settings(arguments: argparse.Namespace) -> BenchSettings:
    """Settings with which real ranks do what the projection does."""
    return BenchSettings(
        model=model_settings(arguments),
        sampling=Sampling(temperature=0.0),
        workload=WorkloadSettings(
            path=arguments.prompts, limit=arguments.limit, max_new_tokens=arguments.max_new_tokens
        ),
        ignore_eos=False,
        cores_per_rank=arguments.threads,
    )


if __name__ == "__main__":
    main()
