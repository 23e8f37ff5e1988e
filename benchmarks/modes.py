"""Compares lookahead, tensor and pipeline parallelism of ranks on one host with one rank, in one run.

    python -m benchmarks.modes --prompts FOLDER
    python -m benchmarks.modes --dtype float32 --ranks 2,4 --streams 1,4,32 --prompt-tokens 547,2000 --rounds 5

Every rank has one core; one rank with a thread on each core is measured as well. All of them stay loaded, and each
round measures one after the other, so that a change of the machine's speed affects all. Decoding is timed while all
streams decode, with their prompts behind them. Shown are medians over the rounds, as ratios to one rank on one core.

Ranks beyond the machine's cores run for their texts only. Their speed is modelled, as that of the others is besides, by
a virtual clock over measured parts (benchmarks/projections/virtual_engine.py): one process on one core decodes the same
texts, takes the processor time of each rank's part, and charges a step its slowest part and its communication. For pp
the time of a step is that of one rank: with N batches under way, each of 1/N of the streams, every stage is busy, and a
token of each stream takes as long as one rank takes for a step of 1/N of the streams. The model gives each rank a
memory of its own, which cores of one machine do not have.
"""

from __future__ import annotations

import argparse
import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch

from benchmarks.projections.network import COLLECTIVE_US, EXCHANGE_US
from benchmarks.projections.virtual_engine import CommunicationTimes, virtual_engine
from benchmarks.shared.categories import read_categories
from benchmarks.shared.inputs import find_model
from benchmarks.shared.options import add_output, add_stored, ascending_numbers, make_parser, parse
from benchmarks.shared.ranks import WAIT_S, Work, ask, assembled, take_core, waiting_ranks
from benchmarks.shared.report import bullets, markdown_table, publish
from lp import Auto, Autoregressive, Engine, Sampling, Stopping
from lp.engine.builder import EngineSettings
from lp.model.checkpoint import DTYPES, ModelSettings
from lp.model.checkpoint_info import read_checkpoint_info
from lp.model.gguf import unpacked_folder
from lp.request import DecodingMethod
from parallel.build import check
from parallel.mesh import Mode, ParallelSettings

METHODS: dict[str, DecodingMethod] = {"autoregressive": Autoregressive(), "auto": Auto()}
ALONE = "one rank"
# Tensor-parallel ranks of a group that computes a part of every tree.
GROUP = 2
MODES = ("lp", "tp", "pp", "lpxtp")
# Tokens of a prompt that streams continue: the end of it.
MOST_PROMPT = 100


@dataclass(frozen=True)
class Layout:
    """Some ranks that serve together. mode, tp: as parallel.mode and parallel.tp. threads: of each rank. is_modelled:
    whether one process plays all ranks.
    """

    name: str
    mode: str = "lp"
    ranks: int = 1
    tp: int | None = None
    threads: int = 1
    is_modelled: bool = False

    @property
    def degrees(self) -> dict[str, int]:
        return self.settings.resolve_degrees(self.ranks)

    @property
    def tp_degree(self) -> int:
        return self.degrees.get("tp", 1)

    @property
    def settings(self) -> ParallelSettings:
        return ParallelSettings(mode=Mode(self.mode), tp=self.tp, timeout_s=WAIT_S)

    @property
    def num_processes(self) -> int:
        return 1 if self.is_modelled else self.ranks


class Layouts(NamedTuple):
    """timed: real ranks, one rank on one core first. crowded: more real ranks than cores, of which only texts count.
    modelled: played ranks, a single one first. refused: why the model cannot be split, for each layout that is left
    out.
    """

    timed: list[Layout]
    crowded: list[Layout]
    modelled: list[Layout]
    refused: list[str]

    def named(self, name: str) -> Layout | None:
        return next((layout for layout in self.timed if layout.name == name), None)


class Decoded(NamedTuple):
    """What some streams have done together. rate: tokens a second of all of them, while all decode. texts: tokens."""

    rate: float
    texts: list[list[int]]


def main() -> None:
    arguments = parse_arguments()
    layouts = make_layouts(arguments)
    found = Found(layouts, arguments)
    for layout in layouts.crowded:
        with started(layout, arguments) as group:
            for work in works(arguments, layout):
                found.note(key_of(layout), work, ask(group, work))
    running = [*layouts.timed, *layouts.modelled]
    with ExitStack() as stack:
        groups = [(layout, stack.enter_context(started(layout, arguments))) for layout in running]
        for number in range(arguments.rounds + 1):  # in the first one, memory is made and drafts are learnt
            print(f"round {number} of {arguments.rounds}" if number else "warming up", flush=True)
            for work in works(arguments, running[0]):
                for layout, group in groups:
                    if work in works(arguments, layout):
                        answer = ask(group, work)
                        if number:
                            found.note(key_of(layout), work, answer)
    name = Path(arguments.model).name.removesuffix(".gguf")
    publish(
        arguments.output,
        f"modes-{name}-{arguments.dtype}{'-stored' * arguments.stored}-{'-'.join(map(str, arguments.ranks))}-ranks",
        f"Modes of parallelism on {' and '.join(map(str, arguments.ranks))} ranks: {name}, {arguments.dtype}",
        found.describe(),
        found.to_json(),
    )


def modelled(name: str) -> str:
    """The name under which the figures of a played layout are kept."""
    return f"{name}, modelled"


def key_of(layout: Layout) -> str:
    """The name under which a layout's figures are kept."""
    return modelled(layout.name) if layout.is_modelled else layout.name


def parse_arguments() -> argparse.Namespace:
    parser = make_parser(__doc__)
    parser.add_argument(
        "--model", default="smollm2", help="smollm2, gemma3-270m or a checkpoint folder (default %(default)s)"
    )
    parser.add_argument("--dtype", default="bfloat16", choices=DTYPES, help="default %(default)s")
    parser.add_argument("--ranks", type=ascending_numbers, default=[2, 4], help="numbers of ranks (default 2,4)")
    parser.add_argument(
        "--modes", default=",".join(MODES), help="with commas between them; lpxtp is lp over tp=2 (default %(default)s)"
    )
    parser.add_argument("--streams", type=ascending_numbers, default=[1, 2, 4], help="texts at once (default 1,2,4)")
    parser.add_argument(
        "--prompt-tokens", type=ascending_numbers, default=[547], help="prompts that are timed (default 547)"
    )
    parser.add_argument("--max-new-tokens", type=int, default=64, help="of each text (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="default %(default)s")
    parser.add_argument("--prompts", type=Path, metavar="FOLDER", help="folder with the prompts (default: our own)")
    parser.add_argument(
        "--exchange-us", type=float, default=EXCHANGE_US, metavar="US",
        help="modelled: of an exchange of all ranks (default %(default)g, as measured)",
    )  # fmt: skip
    parser.add_argument(
        "--collective-us", type=float, default=COLLECTIVE_US, metavar="US",
        help="modelled: of a sum over the ranks of tp (default %(default)g, as measured)",
    )  # fmt: skip
    add_stored(parser)
    add_output(parser)
    arguments = parse(parser)
    if arguments.ranks[0] < 2 or arguments.rounds < 1:
        parser.error("--ranks must be at least 2 and --rounds at least 1")
    arguments.modes = arguments.modes.split(",")
    if unknown := sorted(set(arguments.modes) - set(MODES)):
        parser.error(f"--modes {unknown[0]} is unknown; use {', '.join(MODES)}")
    arguments.model = find_model(arguments.model)
    if not arguments.stored:
        arguments.model = unpacked_folder(arguments.model)
    return arguments


def make_layouts(arguments: argparse.Namespace) -> Layouts:
    """All layouts that the model can have."""
    num_cores = len(os.sched_getaffinity(0))
    threads = Layout(f"one rank, {num_cores} threads", threads=num_cores)
    alone = Layout(ALONE)
    found = Layouts([alone, *[threads][: num_cores - 1]], [], [replace(alone, is_modelled=True)], [])
    config = read_checkpoint_info(arguments.model).config
    for ranks in arguments.ranks:
        for mode in arguments.modes:
            layout = layout_of(mode, ranks)
            if layout is None:
                continue
            try:
                check(config, layout.degrees)
            except ValueError as error:
                found.refused.append(f"{layout.name} is left out: {error}")
                continue
            (found.crowded if is_crowded(layout) else found.timed).append(layout)
            if mode != "pp":
                found.modelled.append(replace(layout, is_modelled=True))
    return found


def layout_of(mode: str, ranks: int) -> Layout | None:
    """The ranks in a mode; None if there are too few of them, or they do not fill groups."""
    if mode != "lpxtp":
        return Layout(f"{mode}={ranks}", mode, ranks)
    if ranks % GROUP or ranks < 2 * GROUP:
        return None
    return Layout(f"lp={ranks // GROUP} x tp={GROUP}", "lp", ranks, GROUP)


Clock = Callable[[], float]


def works(arguments: argparse.Namespace, layout: Layout) -> list[Work]:
    """What a layout does in a round: ("decode", method, streams) or ("prompt", tokens).

    One rank also has the batches of pipelines. Prompts are not read where their time would say nothing: by more ranks
    than cores, and by played ranks that hold the whole model each, since each of them would read all of a prompt.
    """
    streams = set(arguments.streams)
    if layout.name == ALONE:
        streams |= {-(-number // ranks) for number in arguments.streams for ranks in arguments.ranks}
    decoded: list[Work] = [("decode", method, number) for method in METHODS for number in sorted(streams)]
    if is_crowded(layout) or (layout.is_modelled and layout.degrees.get("lp", 1) > layout.tp_degree == 1):
        return decoded
    return decoded + [("prompt", number) for number in arguments.prompt_tokens]


def is_crowded(layout: Layout) -> bool:
    """Whether a layout has more processes than there are cores."""
    return layout.num_processes > len(os.sched_getaffinity(0))


# Ranks


def started(layout: Layout, arguments: argparse.Namespace) -> AbstractContextManager[list[Connection]]:
    """Starts the ranks of a layout, which wait for work."""
    return waiting_ranks(run_rank, layout.num_processes, layout, vars(arguments))


def run_rank(connection: Connection, rank: int, port: int, layout: Layout, arguments: dict[str, Any]) -> None:
    """One rank's process."""
    if layout.threads == 1:
        take_core(rank)
    torch.set_num_threads(layout.threads)
    with opened(layout, rank, port, arguments) as (engine, clock):
        prompts = encode_prompts(engine, arguments["prompts"])
        while (work := connection.recv())[0] != "end":
            match work:
                case ("decode", method, streams):
                    length = arguments["max_new_tokens"]
                    connection.send(decode(engine, prompts, METHODS[method], streams, length, clock))
                case ("prompt", tokens):
                    connection.send(read_prompt(engine, prompts, tokens, clock))
                case _:
                    connection.send(None)


@contextmanager
def opened(layout: Layout, rank: int, port: int, arguments: dict[str, Any]) -> Iterator[tuple[Engine, Clock]]:
    """The engine of one rank, or of played ranks, and the clock by which it is timed."""
    model = ModelSettings(arguments["model"], arguments["dtype"], "cpu")
    if layout.is_modelled:
        times = CommunicationTimes(arguments["exchange_us"] * 1e-6, arguments["collective_us"] * 1e-6)
        yield virtual_engine(model, layout.degrees.get("lp", 1), layout.tp_degree, times)
        return
    with assembled(EngineSettings(model), layout.settings, rank, layout.ranks, port) as engine:
        yield engine, time.perf_counter


def encode_prompts(engine: Engine, folder: Path | None) -> list[list[int]]:
    tokenizer = engine.checkpoint.tokenizer
    return [tokenizer.encode(prompt.for_model(tokenizer)) for prompt in read_categories(folder, 64)]


def decode(
    engine: Engine, prompts: list[list[int]], method: DecodingMethod, streams: int, max_new_tokens: int, clock: Clock
) -> Decoded:
    """Decodes texts side by side. They are timed from where all have begun, for as many tokens as are wanted of all."""
    stopping, sampling = Stopping(ignore_eos=True), Sampling(temperature=0.0, seed=0)
    texts: dict[str, list[int]] = {}
    for number in range(streams):
        prompt = prompts[number * len(prompts) // streams][-MOST_PROMPT:]
        request = engine.request_builder.build(prompt, method, sampling, stopping, request_id=str(number))
        texts[request.id] = []
        engine.add_request(request)
    began, first, done = 0.0, 0, 0
    while not began or done - first < streams * max_new_tokens:  # the ranks end in the same step
        for output in engine.step():
            texts[output.request_id] += output.tokens
        done = sum(map(len, texts.values()))
        if not began and all(texts.values()):
            began, first = clock(), done
    rate = (done - first) / (clock() - began)
    for name in texts:
        engine.abort(name)
    while not engine.is_idle:
        engine.step()
    return Decoded(rate, [text[:max_new_tokens] for text in texts.values()])


def read_prompt(engine: Engine, prompts: list[list[int]], tokens: int, clock: Clock) -> float:
    """Seconds to the first token of a prompt of this length, of which nothing is kept."""
    engine.reset_prefixes()
    text = [token for prompt in prompts for token in prompt]
    prompt = (text * (1 + tokens // len(text)))[:tokens]
    began = clock()
    engine.generate(prompt, decode=Autoregressive(), sampling=Sampling(temperature=0.0, seed=0), stopping=Stopping(1))
    return clock() - began


# Results


class Found:
    """What all layouts have done."""

    def __init__(self, layouts: Layouts, arguments: argparse.Namespace) -> None:
        self._layouts, self._arguments = layouts, arguments
        self._rates: dict[tuple[str, str, int], list[float]] = defaultdict(list)
        self._seconds: dict[tuple[str, int], list[float]] = defaultdict(list)
        self._texts: dict[tuple[str, int], dict[str, list[list[int]]]] = defaultdict(dict)

    def note(self, layout: str, work: Work, answer: Any) -> None:
        match work:
            case ("decode", method, streams):
                self._rates[layout, method, streams].append(answer.rate)
                self._texts[method, streams][layout] = answer.texts
            case ("prompt", tokens):
                self._seconds[layout, tokens].append(answer)

    def describe(self) -> str:
        notes = [
            f"Tokens a second of all streams, over those of one rank on one core. Medians of {self._arguments.rounds} "
            "rounds.",
            "Measured: real ranks, each on a core of its own, which share one memory.",
            "Modelled: one process on one core plays the ranks, takes the processor time of each rank's part of every "
            f"step, and counts the slowest part. An exchange of all ranks costs {self._arguments.exchange_us:g} us, a "
            f"sum over tp {self._arguments.collective_us:g} us, as measured. Each rank has its own memory. Answers "
            "are those of one rank, which is played as well.",
            "Modelled, pp: a token of each of S streams takes as long as one rank takes for a step of S/N streams.",
            *self._layouts.refused,
        ]
        return "\n\n".join(
            [
                bullets(notes), "## Measured", self._measured(), "## Modelled", self._modelled(), "## Texts",
                self._compared(), "## Time to the first token of a prompt", self._prompts(),
            ]
        )  # fmt: skip

    def _rate(self, layout: str, method: str, streams: int) -> float:
        return median(self._rates[layout, method, streams])

    def _measured_ratio(self, layout: str, method: str, streams: int) -> float:
        return self._rate(layout, method, streams) / self._rate(ALONE, method, streams)

    def _modelled_ratio(self, layout: str, method: str, streams: int) -> float:
        alone = partial(self._rate, modelled(ALONE), method)
        if (ranks := layout.removeprefix("pp=")) != layout:
            batch = -(-streams // int(ranks))
            return streams / batch * alone(batch) / alone(streams)
        return self._rate(modelled(layout), method, streams) / alone(streams)

    def _decodings(self) -> list[tuple[str, int]]:
        return [(method, streams) for method in METHODS for streams in self._arguments.streams]

    def _measured(self) -> str:
        names = [layout.name for layout in self._layouts.timed[1:]]
        rows = [
            (
                method, str(streams), f"{self._rate(ALONE, method, streams):.0f}",
                *(f"{self._measured_ratio(name, method, streams):.2f}x" for name in names),
            )
            for method, streams in self._decodings()
        ]  # fmt: skip
        return markdown_table(["method", "streams", f"{ALONE}, tokens/s", *names], rows)

    def _modelled(self) -> str:
        """The model's figures, each with the measured one where there is one."""
        names = [layout.name for ranks in self._arguments.ranks for layout in self._all_of(ranks)]
        rows = []
        for method, streams in self._decodings():
            cells = []
            for name in names:
                cells.append(f"{self._modelled_ratio(name, method, streams):.2f}x")
                if self._layouts.named(name):
                    cells[-1] += f" ({self._measured_ratio(name, method, streams):.2f}x)"
            rows.append((method, str(streams), *cells))
        return "Modelled, and in brackets measured:\n\n" + markdown_table(["method", "streams", *names], rows)

    def _all_of(self, ranks: int) -> list[Layout]:
        return [one for one in [*self._layouts.timed, *self._layouts.crowded] if one.ranks == ranks]

    def _compared(self) -> str:
        layouts = [*self._layouts.timed[1:], *self._layouts.crowded]
        rows = [
            (layout.name, *(self._num_same(layout.name, *decoding) for decoding in self._decodings()))
            for layout in layouts
        ]
        columns = [f"{method}, {streams}" for method, streams in self._decodings()]
        return "How many texts are those of one rank:\n\n" + markdown_table(["ranks", *columns], rows)

    def _num_same(self, layout: str, method: str, streams: int) -> str:
        """How many texts are those of one rank, as far as both go: some streams get ahead of others."""
        found = self._texts[method, streams]
        pairs = [zip(*pair, strict=False) for pair in zip(found[layout], found[ALONE], strict=True)]
        return f"{sum(all(one == other for one, other in pair) for pair in pairs)}/{streams}"

    def _prompts(self) -> str:
        real = [layout.name for layout in self._layouts.timed[1:]]
        played = [layout.name for layout in self._layouts.modelled if layout.tp_degree > 1]
        rows = []
        for tokens in self._arguments.prompt_tokens:
            seconds = {name: median(taken) for (name, number), taken in self._seconds.items() if number == tokens}
            cells = [f"{seconds[ALONE] / seconds[name]:.2f}x" for name in real]
            cells += [f"{seconds[modelled(ALONE)] / seconds[modelled(name)]:.2f}x" for name in played]
            rows.append((f"{tokens:,}", f"{1000 * seconds[ALONE]:.0f}", *cells))
        columns = ["prompt tokens", f"{ALONE}, ms", *real, *map(modelled, played)]
        return "How many times as fast as one rank on one core:\n\n" + markdown_table(columns, rows)

    def to_json(self) -> dict[str, Any]:
        return {
            "rates": {" | ".join(map(str, key)): values for key, values in self._rates.items()},
            "prompt_seconds": {" | ".join(map(str, key)): values for key, values in self._seconds.items()},
        }


if __name__ == "__main__":
    main()
