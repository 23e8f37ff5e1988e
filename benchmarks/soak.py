"""Kills ranks of a server under steady load and looks for wrong answers and leaks.

    python -m benchmarks.soak --model demo/python-11m --ranks 3 --minutes 10 --every 15
    python -m benchmarks.soak --ranks 2 --every 0 --clients 16 --requests 10000 --answers 2 6 --minutes 20

Clients ask short and long questions, half of them streamed, and compare each answer with the one that the undisturbed
server gave. Meanwhile a random rank is killed with SIGKILL every --every seconds. The command samples what the front
end holds: memory, open files, threads, processes, mappings of shared memory; and what its ranks hold. Writes figures to
--output. The exit code is 1 if an answer was lost or wrong, if a resource grew (of the ranks: where none is killed), or
if something was left behind.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field

import psutil

from benchmarks.faults.options import make_server_parser, parse_server_options
from benchmarks.faults.rank_server import RankServer, ServerTrouble, count_mappings, serving, shared_memory_files
from benchmarks.faults.soak_load import LONG, SHORT, SoakLoad, questions
from benchmarks.faults.soak_report import ResourceSample, SoakResult, describe, find_failures
from benchmarks.shared.inputs import read_prompts
from benchmarks.shared.report import publish

# Seconds between two samples.
SAMPLE_S = 5.0
# Seconds between two looks at whether the soak is over.
LOOK_S = 0.1
# With fewer serving ranks a kill is left out, because requests cannot survive the last rank.
FEWEST_SERVING = 2


@dataclass
class SoakStrain:
    """Kills ranks of the server and samples what the server holds meanwhile."""

    server: RankServer
    every_s: float
    seed: int
    killed: list[int] = field(default_factory=list)
    held_back: int = 0
    samples: list[ResourceSample] = field(default_factory=list)

    async def kill(self, goes_on: Callable[[], bool]) -> None:
        """Kills a random rank every `every_s` seconds as long as it goes on; none if that is 0."""
        draw = random.Random(self.seed)
        while self.every_s and await _sleep_while(goes_on, self.every_s):
            serving_now = (await asyncio.to_thread(self.server.status)).pids
            if len(serving_now) < FEWEST_SERVING:
                self.held_back += 1
                continue
            rank = draw.choice(sorted(serving_now))
            os.kill(serving_now[rank], signal.SIGKILL)
            self.killed.append(rank)

    async def sample(self, goes_on: Callable[[], bool]) -> None:
        """Takes a sample every SAMPLE_S seconds as long as it goes on."""
        begin = time.monotonic()
        while await _sleep_while(goes_on, SAMPLE_S):
            self.samples.append(take_sample(self.server.family(), time.monotonic() - begin))


def main() -> None:
    arguments = parse_arguments()
    try:
        soak = run(arguments)
    except ServerTrouble as trouble:
        raise SystemExit(str(trouble)) from None
    failures = find_failures(soak)
    kills = f"a rank killed every {soak.every_s:g} s" if soak.every_s else "no rank killed"
    publish(
        arguments.output,
        f"soak-{arguments.model.name}-{soak.ranks}-ranks-{soak.exchange}" + ("" if soak.every_s else "-undisturbed"),
        f"A soak of {soak.minutes:.3g} minutes, {kills}: {arguments.model.name}",
        describe(soak, failures),
        {"soak": asdict(soak), "failures": failures},
    )
    sys.exit(1 if failures else 0)


def parse_arguments() -> argparse.Namespace:
    parser = make_server_parser(__doc__)
    parser.add_argument("--ranks", type=int, default=3, help="default %(default)s")
    parser.add_argument("--exchange", default="shm", choices=["shm", "gloo", "nccl"], help="default %(default)s")
    parser.add_argument("--minutes", type=float, default=10.0, help="default %(default)s")
    parser.add_argument(
        "--every", type=float, default=15.0, help="seconds between kills; 0: none (default %(default)s)"
    )
    parser.add_argument("--clients", type=int, default=4, help="default %(default)s")
    parser.add_argument("--requests", type=int, default=0, help="ends early after so many answers; 0: it does not")
    parser.add_argument(
        "--answers", type=int, nargs=2, default=(SHORT, LONG), metavar=("SHORT", "LONG"),
        help=f"tokens of short and of long answers (default {SHORT} {LONG})",
    )  # fmt: skip
    parser.add_argument(
        "--prompts", type=int, default=4, help="prompts of our own workload to ask about (default %(default)s)"
    )
    arguments = parse_server_options(parser)
    if arguments.ranks < 2 or min(arguments.clients, arguments.prompts, *arguments.answers) < 1:
        parser.error("--ranks must be at least 2, --clients, --prompts and --answers at least 1")
    if arguments.minutes <= 0 or min(arguments.every, arguments.requests) < 0:
        parser.error("--minutes must be above 0, --every and --requests at least 0")
    return arguments


def run(arguments: argparse.Namespace) -> SoakResult:
    """Raises ServerTrouble if the server does not start, does not recover or does not end."""
    memory_before = shared_memory_files()
    settings = [f"parallel.exchange={arguments.exchange}", *arguments.settings]
    with serving(arguments.model, arguments.ranks, *settings) as server:
        asked = questions(read_prompts(None, arguments.prompts), *arguments.answers)
        load = SoakLoad(server.url, asked, arguments.clients, arguments.seed)
        strain = SoakStrain(server, arguments.every, arguments.seed)
        minutes = asyncio.run(soak_in(load, strain, 60 * arguments.minutes, arguments.requests)) / 60
        server.wait_for_all()
        epochs = server.status().epoch
    left = sorted(shared_memory_files() - memory_before)
    return SoakResult(
        minutes,
        arguments.every,
        arguments.clients,
        arguments.ranks,
        arguments.exchange,
        strain.killed,
        strain.held_back,
        epochs,
        load.answers,
        strain.samples,
        left,
    )


async def soak_in(load: SoakLoad, strain: SoakStrain, seconds: float, most_answers: int = 0) -> float:
    """Returns the seconds that it took. most_answers: after which it ends early; 0 if it does not."""
    await load.learn()
    begin = time.monotonic()
    until = begin + seconds

    def goes_on() -> bool:
        return time.monotonic() < until and (not most_answers or len(load.answers) < most_answers)

    await asyncio.gather(load.run(goes_on), strain.kill(goes_on), strain.sample(goes_on))
    return time.monotonic() - begin


def take_sample(processes: list[psutil.Process], at_s: float) -> ResourceSample:
    """What is held now. processes: the front end first, then those under it."""
    (memory_mb, files, threads), *of_ranks = (held for process in processes if (held := _held(process)))
    by_ranks = [sum(column) for column in zip(*of_ranks, strict=True)] or [0, 0, 0]
    mappings = sum(map(count_mappings, processes))
    return ResourceSample(at_s, memory_mb, files, threads, len(processes) - 1, mappings, *by_ranks)


def _held(process: psutil.Process) -> tuple[float, int, int] | None:
    """The MB, open files and threads of a process; None if it has just ended, or is about to."""
    try:
        with process.oneshot():
            return process.memory_info().rss / 1e6, process.num_fds(), process.num_threads()
    except psutil.Error:  # of a process that ends, some say that it has gone, others that they must not be read
        return None


async def _sleep_while(goes_on: Callable[[], bool], seconds: float) -> bool:
    """Sleeps so long, or until it does not go on. Returns whether it does."""
    until = time.monotonic() + seconds
    while goes_on() and (left := until - time.monotonic()) > 0:
        await asyncio.sleep(min(left, LOOK_S))
    return goes_on()


if __name__ == "__main__":
    main()
