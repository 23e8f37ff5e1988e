"""Measures a server while other programs on its machine begin and end.

    python -m benchmarks.changing_load --minutes 10
    python -m benchmarks.changing_load --ranks 2 --serve decode.max_rows=32

Requests arrive at random moments, in pairs: the same prompt once by decode=auto and once plainly, in random order.
Meanwhile other processes, which keep a core and the memory busy, begin and end at random. Shown are, for each minute,
the speed of auto over plain decoding, and the worst time to a first token beyond what the prompt's length explains:
the median time for each token of a prompt in that minute. Then the others end, the server decodes some more texts, and
the step times that it has learnt are compared with the steps of the next texts, and with a thorough measurement in a
process of its own, whose steps of different sizes take turns and therefore take longer.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import random
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from pathlib import Path
from statistics import median
from typing import Any

import httpx
import numpy as np

from benchmarks.load.client import RequestRecord, stream
from benchmarks.load.prompts import LoadRequest, PromptDeck
from benchmarks.load.systems.dialects import Api
from benchmarks.load.systems.own import own_system
from benchmarks.load.systems.specs import RunningSystem, ServerNeeds, SystemKind, SystemSpec, Unavailable
from benchmarks.shared.categories import read_categories
from benchmarks.shared.inputs import load_engine
from benchmarks.shared.options import add_output, add_threads, make_parser, parse
from benchmarks.shared.report import markdown_table, publish
from launch.config import resources
from lp.model.checkpoint import DTYPES
from lp.model.checkpoint_info import read_checkpoint_info
from lp.model.compilation import CompileMode
from lp.runner.step_times.measure import StepTimesSource
from lp.step_cost import StepTimes

METHODS = ("auto", "autoregressive")
# Seconds between two pairs, and for which another process runs or rests; all of them on average.
GAP_S, RUNS_S, RESTS_S = 0.5, 15.0, 15.0
# Bytes that another process adds up over and over: more than caches hold.
BUSY_BYTES = 64 * 1024**2
# Tokens that are decoded at the end before step times are read; about 200 steps.
QUIET_TOKENS = 400
# Steps of a number of rows from which on their median is shown.
FEWEST_STEPS = 5


@dataclass
class Minute:
    """What happened in a minute. pairs: records of METHODS for the same prompt. busy: other processes at each pair."""

    pairs: list[dict[str, RequestRecord]] = field(default_factory=list)
    busy: list[int] = field(default_factory=list)

    @property
    def speed(self) -> float | None:
        """The speed of auto over that of plain decoding, after the first token; None without requests."""
        taken = [(one["auto"].per_token_s, one["autoregressive"].per_token_s) for one in self.pairs]
        known = [(auto, plain) for auto, plain in taken if auto and plain]
        return sum(plain for _, plain in known) / sum(auto for auto, _ in known) if known else None

    @property
    def first_tokens_s(self) -> list[float]:
        """Seconds to the first token of each request beyond what its prompt explains, at least 0."""
        records = [record for one in self.pairs for record in one.values() if record.error is None]
        of_token = median([one.first_token_s / (one.prompt_tokens or 1) for one in records] or [0.0])
        return [max(0.0, one.first_token_s - of_token * (one.prompt_tokens or 1)) for one in records]


class Others:
    """Processes that begin and end at random."""

    def __init__(self, number: int, seed: int):
        self._random = random.Random(seed)
        self._context = multiprocessing.get_context("spawn")
        self._running: list[BaseProcess | None] = [None] * number
        self._until = [time.monotonic() + self._random.expovariate(1 / RESTS_S) for _ in range(number)]

    def advance(self) -> int:
        """Begins and ends those whose time has come. Returns how many run."""
        for place, until in enumerate(self._until):
            if time.monotonic() < until:
                continue
            if process := self._running[place]:
                process.kill()
                self._running[place] = None
            else:
                self._running[place] = process = self._context.Process(target=keep_busy, daemon=True)
                process.start()
            lasting_s = RUNS_S if self._running[place] else RESTS_S
            self._until[place] = time.monotonic() + self._random.expovariate(1 / lasting_s)
        return sum(process is not None for process in self._running)

    def end(self) -> None:
        for process in filter(None, self._running):
            process.kill()
            process.join()


def keep_busy() -> None:
    """Another program: it computes and reads memory, until it is killed or its parent has ended."""
    numbers, parent = np.ones(BUSY_BYTES // 8), os.getppid()
    square = np.ones((256, 256))
    while os.getppid() == parent:
        numbers.sum()
        square @ square


def main() -> None:
    arguments = parse_arguments()
    try:
        checkpoint = read_checkpoint_info(resources.resolve(arguments.model))
        deck = PromptDeck(read_categories(arguments.prompts, 1000), checkpoint.tokenizer, 400, arguments.seed)
    except ValueError as error:
        raise SystemExit(str(error)) from None
    needs = ServerNeeds(checkpoint.path, arguments.dtype, arguments.ranks, arguments.threads, 4, 1024)
    spec = SystemSpec("server", SystemKind.own, words=tuple(arguments.serve))
    others = Others(arguments.others, arguments.seed)
    try:
        with own_system(spec, needs, Api.completions) as system:
            minutes = asyncio.run(measure(system, deck, others, arguments))
            others.end()
            asyncio.run(serve_quietly(system, deck))
            state = httpx.get(f"{system.urls[0]}/lookahead/state", timeout=30).json()
            served = served_steps(system, deck)
    except Unavailable as error:
        raise SystemExit(f"the server does not run: {error}") from None
    finally:
        others.end()
    quiet = measure_quiet(checkpoint.path, arguments) if arguments.ranks == 1 else None
    name = Path(checkpoint.path).name
    publish(
        arguments.output,
        f"changing-load-{name}-{arguments.dtype}-{arguments.ranks}-ranks",
        f"Under a changing load: {name}, {arguments.dtype}, {arguments.ranks} rank(s)",
        describe(minutes, state, served, quiet),
        {"minutes": [to_json(one) for one in minutes], "state": state, "served": served, "quiet": quiet},
    )


def parse_arguments() -> argparse.Namespace:
    parser = make_parser(__doc__)
    parser.add_argument("--model", default=resources.SMOLLM2, help="checkpoint folder (default %(default)s)")
    parser.add_argument("--dtype", default="bfloat16", choices=DTYPES, help="default %(default)s")
    parser.add_argument("--ranks", type=int, default=1, help="of the server (default %(default)s)")
    parser.add_argument("--minutes", type=float, default=10.0, help="default %(default)s")
    parser.add_argument("--others", type=int, default=2, help="processes that begin and end (default %(default)s)")
    parser.add_argument("--max-new-tokens", type=int, default=48, help="of each text (default %(default)s)")
    parser.add_argument("--prompts", type=Path, metavar="FOLDER", help="folder with the prompts (default: our own)")
    parser.add_argument("--seed", type=int, default=0, help="default %(default)s")
    parser.add_argument("--serve", nargs="*", default=[], metavar="KEY=VALUE", help="more settings of the server")
    add_threads(parser)
    add_output(parser)
    arguments = parse(parser)
    if arguments.minutes <= 0 or min(arguments.ranks, arguments.max_new_tokens) < 1 or arguments.others < 0:
        parser.error("--minutes, --ranks and --max-new-tokens must be above 0, and --others at least 0")
    return arguments


async def measure(
    system: RunningSystem, deck: PromptDeck, others: Others, arguments: argparse.Namespace
) -> list[Minute]:
    """Sends pairs of requests for the minutes that are asked for."""
    rng, began = random.Random(arguments.seed), time.monotonic()
    minutes: list[Minute] = []
    async with httpx.AsyncClient(timeout=300) as client:
        while (passed := time.monotonic() - began) < 60 * arguments.minutes:
            while len(minutes) <= passed // 60:
                minutes.append(Minute())
                show(minutes[-2:-1], len(minutes) - 1)
            minute, pair = minutes[-1], dict[str, RequestRecord]()
            request = deck.draw(arguments.max_new_tokens)
            minute.busy.append(others.advance())
            for method in rng.sample(METHODS, len(METHODS)):
                await asyncio.sleep(rng.expovariate(2 / GAP_S))
                pair[method] = await ask(client, system, request, method)
            if errors := [record.error for record in pair.values() if record.error]:
                raise SystemExit(f"a request failed: {errors[0]}")
            minute.pairs.append(pair)
    return minutes


def show(last: Sequence[Minute], number: int) -> None:
    """Prints the figures of the last minute."""
    for minute in last:
        if minute.speed:
            worst_s = max(minute.first_tokens_s)
            print(
                f"minute {number}: auto over plain {minute.speed:.2f}, first token at most {worst_s:.2f} s", flush=True
            )


async def ask(client: httpx.AsyncClient, system: RunningSystem, request: LoadRequest, method: str) -> RequestRecord:
    path, body = system.make_body(request)
    record = RequestRecord(method, time.perf_counter())
    await stream(client, system.urls[0] + path, {**body, "decode": {"method": method}}, record)
    return record


async def serve_quietly(system: RunningSystem, deck: PromptDeck) -> None:
    """Lets the server learn from texts while nothing else runs."""
    await asyncio.sleep(1)
    async with httpx.AsyncClient(timeout=300) as client:
        for _ in range(4):
            await ask(client, system, deck.draw(QUIET_TOKENS // 4), "auto")


def served_steps(system: RunningSystem, deck: PromptDeck) -> list[list[float]]:
    """Rows, their number of steps, and the medians of the milliseconds that they took and that were expected before,
    of the steps of some texts on the quiet machine.
    """
    found: dict[int, list[tuple[float, float]]] = {}
    for _ in range(4):
        path, body = system.make_body(deck.draw(QUIET_TOKENS // 4))
        asked = {**body, "decode": {"method": "auto"}, "lookahead_trace": True}
        with httpx.stream("POST", system.urls[0] + path, json=asked, timeout=300) as response:
            for line in response.iter_lines():
                if line.startswith("data: {"):
                    for trace in traces_of(json.loads(line[6:])):
                        found.setdefault(trace["rows"], []).append((trace["step_ms"], trace["expected_ms"]))
    return [
        [rows, len(taken), *(median(one) for one in zip(*taken, strict=True))]
        for rows, taken in sorted(found.items())
        if len(taken) >= FEWEST_STEPS
    ]


def traces_of(chunk: Any) -> list[dict[str, Any]]:
    """What steps did that ended with a chunk, without those that read a prompt."""
    if isinstance(chunk, dict):
        if "step_ms" in chunk and "emitted" in chunk:
            return [chunk] if chunk.get("step") and chunk["step_ms"] and chunk.get("expected_ms") else []
        chunk = list(chunk.values())
    return [trace for one in chunk for trace in traces_of(one)] if isinstance(chunk, list) else []


def measure_quiet(path: str, arguments: argparse.Namespace) -> list[list[float]]:
    """Rows and milliseconds of a step, measured thoroughly now."""
    engine = load_engine(path, arguments.dtype, "cpu", CompileMode.auto, StepTimesSource.measure)
    times = engine.history.step_times
    assert times is not None
    return [[rows, 1000 * seconds] for rows, seconds in zip(times.rows, times.seconds, strict=True)]


def describe(
    minutes: Sequence[Minute], state: dict[str, Any], served: list[list[float]], quiet: list[list[float]] | None
) -> str:
    rows = [
        (
            str(number),
            str(len(minute.pairs)),
            f"{sum(minute.busy) / len(minute.busy):.1f}",
            f"{minute.speed:.2f}x",
            f"{1000 * max(minute.first_tokens_s):.0f} ms",
        )
        for number, minute in enumerate(minutes, start=1)
        if minute.speed
    ]
    all_s = sorted(second for minute in minutes for second in minute.first_tokens_s)
    speeds = [minute.speed for minute in minutes if minute.speed]
    parts = [
        f"Worst first token beyond what its prompt explains: {1000 * all_s[-1]:.0f} ms; 99 of 100 within "
        f"{1000 * all_s[int(0.99 * (len(all_s) - 1))]:.0f} ms. Auto over plain decoding: {min(speeds):.2f} to "
        f"{max(speeds):.2f}, median {median(speeds):.2f}.",
        markdown_table(["minute", "pairs", "other processes", "auto over plain", "worst first token"], rows),
    ]
    learnt = StepTimes(*map(tuple, zip(*((int(number), ms) for number, ms in state["curve"]), strict=True)))
    parts.append(f"Step times at the end, {state['curve_origin']}: what was expected of the steps of the next texts:")
    cells = [
        (f"{number:.0f}", f"{count:.0f}", f"{expected:.1f}", f"{ms:.1f}", f"{expected / ms:.2f}")
        for number, count, ms, expected in served
    ]
    parts.append(markdown_table(["rows", "steps", "expected ms", "served ms", "ratio"], cells))
    if quiet:
        cells = [(str(number), f"{learnt.at(int(number)):.1f}", f"{ms:.1f}") for number, ms in quiet]
        parts.append("The learnt curve beside a thorough measurement, whose sizes take turns:")
        parts.append(markdown_table(["rows", "learnt ms", "measured ms"], cells))
    return "\n\n".join(parts)


def to_json(minute: Minute) -> dict[str, Any]:
    return {
        "pairs": len(minute.pairs), "busy": minute.busy, "speed": minute.speed, "first_tokens_s": minute.first_tokens_s,
    }  # fmt: skip


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        main()
