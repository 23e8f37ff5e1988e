"""Kills ranks of a server under steady load and looks for wrong answers and leaks.

    python -m benchmarks.soak --model demo/python-11m --ranks 3 --minutes 10 --every 15

Clients ask short and long questions, half of them streamed, and compare each answer with the one that the undisturbed
server gave. Meanwhile a random rank is killed with SIGKILL every --every seconds. The command samples what the front
end holds: memory, open files, threads, processes, mappings of shared memory. Writes figures to --output. The exit code
is 1 if an answer was lost or wrong, if a resource grew, or if something was left behind.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import signal
import sys
import time
from dataclasses import asdict, dataclass, field

import psutil

from benchmarks.faults.options import make_server_parser, parse_server_options
from benchmarks.faults.rank_server import RankServer, ServerTrouble, count_mappings, serving, shared_memory_files
from benchmarks.faults.soak_load import SoakLoad, questions
from benchmarks.faults.soak_report import ResourceSample, SoakResult, describe, find_failures
from benchmarks.shared.inputs import read_prompts
from benchmarks.shared.report import publish

# Seconds between two samples.
SAMPLE_S = 5.0
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

    async def kill(self, until: float) -> None:
        """Kills a random rank every `every_s` seconds until the given time (time.monotonic())."""
        draw = random.Random(self.seed)
        while await _sleep_before(until, self.every_s):
            serving_now = (await asyncio.to_thread(self.server.status)).pids
            if len(serving_now) < FEWEST_SERVING:
                self.held_back += 1
                continue
            rank = draw.choice(sorted(serving_now))
            os.kill(serving_now[rank], signal.SIGKILL)
            self.killed.append(rank)

    async def sample(self, until: float) -> None:
        """Takes a sample every SAMPLE_S seconds until the given time."""
        begin = time.monotonic()
        while await _sleep_before(until, SAMPLE_S):
            self.samples.append(take_sample(self.server.family(), time.monotonic() - begin))


def main() -> None:
    arguments = parse_arguments()
    try:
        soak = run(arguments)
    except ServerTrouble as trouble:
        raise SystemExit(str(trouble)) from None
    failures = find_failures(soak)
    publish(
        arguments.output,
        f"soak-{arguments.model.name}-{soak.ranks}-ranks-{soak.exchange}",
        f"A soak of {soak.minutes:g} minutes with a rank killed every {soak.every_s:g} s: {arguments.model.name}",
        describe(soak, failures),
        {"soak": asdict(soak), "failures": failures},
    )
    sys.exit(1 if failures else 0)


def parse_arguments() -> argparse.Namespace:
    parser = make_server_parser(__doc__)
    parser.add_argument("--ranks", type=int, default=3, help="default %(default)s")
    parser.add_argument("--exchange", default="shm", choices=["shm", "gloo", "nccl"], help="default %(default)s")
    parser.add_argument("--minutes", type=float, default=10.0, help="default %(default)s")
    parser.add_argument("--every", type=float, default=15.0, help="seconds between kills (default %(default)s)")
    parser.add_argument("--clients", type=int, default=4, help="default %(default)s")
    parser.add_argument(
        "--prompts", type=int, default=4, help="prompts of our own workload to ask about (default %(default)s)"
    )
    arguments = parse_server_options(parser)
    if (
        arguments.ranks < 2
        or min(arguments.clients, arguments.prompts) < 1
        or min(arguments.minutes, arguments.every) <= 0
    ):
        parser.error("--ranks must be at least 2, --clients and --prompts at least 1, --minutes and --every above 0")
    return arguments


def run(arguments: argparse.Namespace) -> SoakResult:
    """Raises ServerTrouble if the server does not start, does not recover or does not end."""
    memory_before = shared_memory_files()
    settings = [f"parallel.exchange={arguments.exchange}", *arguments.settings]
    with serving(arguments.model, arguments.ranks, *settings) as server:
        load = SoakLoad(server.url, questions(read_prompts(None, arguments.prompts)), arguments.clients, arguments.seed)
        strain = SoakStrain(server, arguments.every, arguments.seed)
        asyncio.run(soak_in(load, strain, 60 * arguments.minutes))
        server.wait_for_all()
        epochs = server.status().epoch
    left = sorted(shared_memory_files() - memory_before)
    return SoakResult(
        arguments.minutes,
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


async def soak_in(load: SoakLoad, strain: SoakStrain, seconds: float) -> None:
    await load.learn()
    until = time.monotonic() + seconds
    await asyncio.gather(load.run(lambda: time.monotonic() < until), strain.kill(until), strain.sample(until))


def take_sample(processes: list[psutil.Process], at_s: float) -> ResourceSample:
    """What the front end holds now. processes: the front end first, then those under it."""
    front_end, *under_it = processes
    with front_end.oneshot():
        memory_mb = front_end.memory_info().rss / 1e6
        files, threads = front_end.num_fds(), front_end.num_threads()
    return ResourceSample(at_s, memory_mb, files, threads, len(under_it), sum(map(count_mappings, processes)))


async def _sleep_before(until: float, seconds: float) -> bool:
    """Sleeps and returns True; returns False at once if the sleep would last beyond `until`."""
    if time.monotonic() + seconds > until:
        return False
    await asyncio.sleep(seconds)
    return True


if __name__ == "__main__":
    main()
