"""Measures the time to the first token of a long prompt on several ranks, and that of copies.

    python -m benchmarks.steps.long_prompt --tokens 1500 --ranks 2 --played 2,4

All ranks are on this host, with a core each. In each round the prompt is read in three ways, one after the other: by
one rank while the others wait; by one rank in steps that all take part in, the others copying its keys and values; and
split, each rank computing a part of every chunk. Prints a table and writes it to --output.

More ranks than there are cores are played (--played): one process computes each rank's part of every chunk and takes
its processor time; copies take the times that were measured between the real ranks, and a chunk takes as long as the
slowest rank. Such ranks do not share a memory, so the table also has as many played ranks as real ones.
"""

from __future__ import annotations

import argparse
import math
import os
import time
from dataclasses import replace
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.distributed import TCPStore

from benchmarks.projections.lone_rank import LoneRank
from benchmarks.projections.network import EXCHANGE_US
from benchmarks.projections.streams.curves import shared_times
from benchmarks.projections.virtual_engine import CommunicationTimes, VirtualClock
from benchmarks.projections.virtual_ranks import VirtualRanks
from benchmarks.shared.options import add_output, ascending_numbers, make_parser, parse
from benchmarks.shared.ranks import run_ranks
from benchmarks.shared.report import markdown_table, progress, publish
from launch.config import resources
from lp import Autoregressive, Engine, Sampling
from lp.model.checkpoint import DTYPES, Checkpoint, ModelSettings, load
from lp.model.gguf import unpacked_folder
from lp.runner.single_device import SingleDevice
from lp.runner.step_times.calibrate import resolve_step_times
from lp.runner.step_times.measure import StepTimesSource
from lp.step_cost import StepTimes
from parallel.build import share_steps
from parallel.comm.channel import Channel
from parallel.comm.connect import connect
from parallel.mesh import ExchangeKind, ParallelSettings, make_mesh
from parallel.runners.copy_cost import CopyCost
from parallel.runners.lookahead import LookaheadParallel

WAYS = "one rank", "one rank, others copy", "split"
MOST_ROWS = 64


class Plan(NamedTuple):
    """What to measure. folder: of the checkpoint. exchange: what carries the ranks' messages. played: numbers of
    ranks that are played besides.
    """

    folder: str
    dtype: str
    tokens: int
    ranks: int
    rounds: int
    exchange: str
    played: list[int]


class Found(NamedTuple):
    """What the first rank has seen.

    seconds: to the first token, for each way and round. times: what a step and a copy take. cost: of a copy, in rows.
    is_same: whether all ways yield the same token. token_bytes: keys and values of one token. played: seconds of each
    round by the number of played ranks, of which 1 is the first.
    """

    seconds: dict[str, list[float]]
    times: StepTimes
    cost: CopyCost
    is_same: bool
    token_bytes: int
    played: dict[int, list[float]]


def main() -> None:
    arguments = parse_arguments()
    try:
        folder = unpacked_folder(resources.resolve(arguments.model))
    except ValueError as error:
        raise SystemExit(str(error)) from None
    plan = Plan(
        str(folder), arguments.dtype, arguments.tokens, arguments.ranks, arguments.rounds, str(arguments.exchange),
        arguments.played,
    )  # fmt: skip
    found = measure(plan)
    name = os.path.basename(os.path.normpath(plan.folder))
    publish(
        arguments.output,
        f"long_prompt-{name}-{plan.dtype}-{plan.ranks}-ranks",
        f"A prompt of {plan.tokens:,} tokens on {plan.ranks} ranks: {name}, {plan.dtype}",
        describe(plan, found),
        {
            "plan": {**plan._asdict(), "folder": name},
            "seconds": found.seconds,
            "played_seconds": found.played,
            "times": found.times.to_dict(),
        },
    )


def parse_arguments() -> argparse.Namespace:
    parser = make_parser(__doc__)
    parser.add_argument("--model", default=resources.SMOLLM2, help="checkpoint folder (default %(default)s)")
    parser.add_argument("--dtype", default="bfloat16", choices=DTYPES, help="default %(default)s")
    parser.add_argument("--tokens", type=int, default=1500, help="of the prompt (default %(default)s)")
    parser.add_argument("--ranks", type=int, default=2, help="processes on this host (default %(default)s)")
    parser.add_argument(
        "--played", type=ascending_numbers, default=[], metavar="R,R,...", help="numbers of ranks that are played"
    )
    parser.add_argument("--rounds", type=int, default=5, help="prompts read in each way (default %(default)s)")
    parser.add_argument("--exchange", default="shm", choices=["shm", "gloo"], help="default %(default)s")
    add_output(parser)
    arguments = parse(parser)
    if min(arguments.ranks, arguments.tokens) < 2 or arguments.rounds < 1:
        parser.error("--ranks and --tokens must be at least 2, --rounds at least 1")
    return arguments


def measure(plan: Plan) -> Found:
    """Starts the ranks as processes, and returns what the first one has seen."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    return run_ranks(run_rank, plan.ranks, plan, store.port)[0]


def run_rank(rank: int, plan: Plan, port: int) -> Found:
    """One rank's process."""
    os.environ.update(
        RANK=str(rank), WORLD_SIZE=str(plan.ranks), LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE=str(plan.ranks),
        MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), TORCHELASTIC_USE_AGENT_STORE="True",
    )  # fmt: skip
    torch.set_num_threads(1)
    settings = ParallelSettings(exchange=ExchangeKind(plan.exchange))
    channel = Channel(connect(settings, make_mesh(settings, "cpu")))
    checkpoint = load(ModelSettings(plan.folder, plan.dtype, "cpu"))
    found = measure_ways(plan, channel, checkpoint)
    channel.close()
    if rank == 0 and plan.played:
        return play_ranks(plan, checkpoint, found)
    return found


def measure_ways(plan: Plan, channel: Channel, checkpoint: Checkpoint) -> Found:
    """Reads the prompt in all ways, in rounds."""
    runner = share_steps(SingleDevice(checkpoint.model), channel)
    assert isinstance(runner, LookaheadParallel)
    model = checkpoint.model
    times = resolve_step_times(
        StepTimesSource.measure, model, runner, MOST_ROWS, ["long_prompt", plan.ranks, plan.exchange], channel.broadcast
    )
    assert times is not None
    runner.use_times(times)
    split = runner.sharing.copy_cost
    costs = {WAYS[1]: split._replace(per_split=math.inf), WAYS[2]: split}
    shared, alone = Engine(checkpoint, runner), Engine(checkpoint, runner.inner)
    prompt = make_prompt(plan, checkpoint)
    seconds: dict[str, list[float]] = {way: [] for way in WAYS}
    tokens: set[int] = set()
    for number in range(1 + plan.rounds):  # the first one makes memory
        for way in WAYS:
            channel.compare(np.zeros(1, np.int32))
            begin = time.perf_counter()
            if way in costs or channel.is_leader:
                runner.sharing.copy_cost = costs.get(way, split)
                tokens.add(read(shared if way in costs else alone, prompt))
            if number:
                seconds[way].append(time.perf_counter() - begin)
    token_bytes = model.numbers_per_token * model.dtype.itemsize
    return Found(seconds, times, split, len(tokens) == 1, token_bytes, {})


def play_ranks(plan: Plan, checkpoint: Checkpoint, found: Found) -> Found:
    """Reads the prompt by one rank and by ranks that split it, all of which this process plays."""
    one = replace(found.times.alone or found.times, extras=found.times.extras)
    communication, prompt = CommunicationTimes(EXCHANGE_US * 1e-6, 0.0), make_prompt(plan, checkpoint)
    played, tokens = dict[int, list[float]](), set[int]()
    for ranks in progress([1, *plan.played], "playing", "number of ranks"):
        clock = VirtualClock(communication, LoneRank(1), ranks)
        runner = VirtualRanks(checkpoint.model, ranks, clock.note, time.thread_time)
        runner.use_times(shared_times(one, ranks, communication.exchange_s))
        engine, played[ranks] = Engine(checkpoint, runner), []
        for number in range(1 + plan.rounds):
            begin = clock()
            tokens.add(read(engine, prompt))
            if number:
                played[ranks].append(clock() - begin)
    return found._replace(played=played, is_same=found.is_same and len(tokens) == 1)


def make_prompt(plan: Plan, checkpoint: Checkpoint) -> list[int]:
    return np.random.default_rng(0).integers(2, checkpoint.vocab_size, plan.tokens).tolist()


def read(engine: Engine, prompt: list[int]) -> int:
    """The first token after a prompt."""
    sampling = replace(Sampling.greedy(), seed=0)
    return engine.generate(prompt, max_new_tokens=1, decode=Autoregressive(), sampling=sampling).token_ids[0]


def describe(plan: Plan, found: Found) -> str:
    base = median(found.seconds[WAYS[0]])
    rows: list[tuple[Any, ...]] = [
        (way, f"{1000 * median(taken):.0f} ms", f"{base / median(taken):.2f}x") for way, taken in found.seconds.items()
    ]
    for ranks, taken in found.played.items():
        own = median(taken)
        name = f"split by {ranks} ranks, played" if ranks > 1 else "one rank, played"
        rows.append((name, f"{1000 * own:.0f} ms", f"{median(found.played[1]) / own:.2f}x"))
    extras, cost = found.times.extras, found.cost
    computed_s = base / plan.tokens
    remark = (
        " Played: in processor time, over one played rank; each rank has a memory of its own." if found.played else ""
    )
    return "\n\n".join(
        [
            f"{plan.rounds} rounds, medians. All ways yield the same token: {'yes' if found.is_same else 'no'}."
            f"{remark}",
            markdown_table(["the prompt is computed by", "time to first token", "of one rank"], rows),
            f"A token of the prompt takes {1e6 * computed_s:.0f} us to compute. To copy a token to another rank, "
            f"{found.token_bytes:,} bytes of keys and values, takes {1e6 * extras.copied_token:.1f} us, and each copy "
            f"{1e6 * extras.copy:.0f} us more: {cost.per_token:.4f} and {cost.per_copy:.2f} rows of a long trunk.",
        ]
    )


if __name__ == "__main__":
    main()
