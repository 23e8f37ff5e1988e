"""A server under steady load whose ranks are killed again and again: is any answer lost or wrong, does it leak?

    python -m benchmarks.soak --model demo/python-11m --ranks 3 --minutes 10 --every 15

Clients ask short and long questions, half of them streamed, and compare each answer with the one that the undisturbed
server gave. Meanwhile a rank at random is killed with SIGKILL every so many seconds. What the front end holds is
sampled: memory, open files, threads, processes, files in shared memory. Writes figures to --output; the exit code is 1
if a request was lost or wrong, something grew, or something was left behind.
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
from pathlib import Path

import psutil

from benchmarks.faults.rank_server import RankServer, ServerTrouble, count_mappings, serving, shared_memory_files
from benchmarks.faults.soak_load import Load, questions
from benchmarks.faults.soak_report import Holding, Soak, describe, find_failures
from benchmarks.shared.report import add_output, parse, publish, read_prompts

SAMPLE_S = 5.0
FEWEST_SERVING = 2
"""With fewer, a kill waits for its next turn: the last rank's requests cannot survive."""


@dataclass
class Strain:
    """What is done to the server, and what it holds meanwhile."""

    server: RankServer
    every_s: float
    seed: int
    killed: list[int] = field(default_factory=list)
    held_back: int = 0
    holdings: list[Holding] = field(default_factory=list)

    async def kill(self, until: float) -> None:
        """One rank at random every `every_s`, until that time (time.monotonic())."""
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
        begin = time.monotonic()
        while await _sleep_before(until, SAMPLE_S):
            self.holdings.append(hold(self.server.family(), time.monotonic() - begin))


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
        f"A soak of {soak.minutes:g} minutes, a rank killed every {soak.every_s:g} s: {arguments.model.name}",
        describe(soak, failures),
        {"soak": asdict(soak), "failures": failures},
    )
    sys.exit(1 if failures else 0)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=Path("demo/python-11m"), help="folder (default %(default)s)")
    parser.add_argument("--ranks", type=int, default=3, help="default %(default)s")
    parser.add_argument("--exchange", default="shm", choices=["shm", "gloo", "nccl"], help="default %(default)s")
    parser.add_argument("--minutes", type=float, default=10.0, help="default %(default)s")
    parser.add_argument("--every", type=float, default=15.0, help="seconds between kills (default %(default)s)")
    parser.add_argument("--clients", type=int, default=4, help="default %(default)s")
    parser.add_argument("--prompts", type=int, default=4, help="of our own workload (default %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of questions and kills (default %(default)s)")
    parser.add_argument("--settings", nargs="*", default=[], metavar="KEY=VALUE", help="more settings of the server")
    add_output(parser)
    arguments = parse(parser)
    if (
        arguments.ranks < 2
        or min(arguments.clients, arguments.prompts) < 1
        or min(arguments.minutes, arguments.every) <= 0
    ):
        parser.error("--ranks must be at least 2, --clients and --prompts at least 1, --minutes and --every above 0")
    if not arguments.model.is_dir():
        parser.error(f"--model {arguments.model} is not a folder")
    return arguments


def run(arguments: argparse.Namespace) -> Soak:
    """Raises ServerTrouble if the server does not start, does not recover or does not end."""
    memory_before = shared_memory_files()
    settings = ["parallel=lp", f"parallel.exchange={arguments.exchange}", *arguments.settings]
    with serving(arguments.model, arguments.ranks, *settings) as server:
        load = Load(server.url, questions(read_prompts(None, arguments.prompts)), arguments.clients, arguments.seed)
        strain = Strain(server, arguments.every, arguments.seed)
        asyncio.run(soak_in(load, strain, 60 * arguments.minutes))
        server.wait_for_all()
        epochs = server.status().epoch
    left = sorted(shared_memory_files() - memory_before)
    return Soak(
        arguments.minutes,
        arguments.every,
        arguments.clients,
        arguments.ranks,
        arguments.exchange,
        strain.killed,
        strain.held_back,
        epochs,
        load.answers,
        strain.holdings,
        left,
    )


async def soak_in(load: Load, strain: Strain, seconds: float) -> None:
    await load.learn()
    until = time.monotonic() + seconds
    await asyncio.gather(load.run(until), strain.kill(until), strain.sample(until))


def hold(processes: list[psutil.Process], at_s: float) -> Holding:
    """What the first of these, the front end, holds now, and the others, its ranks, with it."""
    front_end, *under_it = processes
    with front_end.oneshot():
        memory_mb = front_end.memory_info().rss / 1e6
        files, threads = front_end.num_fds(), front_end.num_threads()
    return Holding(at_s, memory_mb, files, threads, len(under_it), sum(map(count_mappings, processes)))


async def _sleep_before(until: float, seconds: float) -> bool:
    """Sleeps; False, at once, if that would last beyond `until`."""
    if time.monotonic() + seconds > until:
        return False
    await asyncio.sleep(seconds)
    return True


if __name__ == "__main__":
    main()
