"""Compares lookahead, tensor and pipeline parallelism of ranks on one host with one rank, in one run.

    python -m benchmarks.modes --prompts FOLDER
    python -m benchmarks.modes --dtype float32 --ranks 2,4 --streams 1,4,32 --prompt-tokens 547,2000 --rounds 5
    python -m benchmarks.modes --clocks modelled --ranks 2,4,8 --modes lp --streams 1 --texts 4
        --methods autoregressive lookahead:15,5,15 prompt_lookup:5,15

Every rank has one core; one rank with a thread on each core is measured as well. All of them stay loaded, and each
round measures one after the other, so that a change of the machine's speed affects all. Decoding is timed while all
streams decode, with their prompts behind them. Ranks learn from what they have decoded how long steps take, as those of
a server do. Shown are medians over the rounds, as ratios to one rank on one core with the same method and with plain
decoding; and for each category of texts, where there is one stream. The mode `auto`, the programs' default, shares
trees as lp does, and its ranks compute a prompt together.

Ranks beyond the machine's cores run for their texts only. Their speed is modelled, as that of the others is besides, by
a virtual clock over measured parts (benchmarks/projections/virtual_engine.py): one process on one core decodes the same
texts, takes the processor time of each rank's part, and charges a step its slowest part and its communication. For pp
the time of a step is that of one rank: with N batches under way, each of 1/N of the streams, every stage is busy, and a
token of each stream takes as long as one rank takes for a step of 1/N of the streams. The model gives each rank a
memory of its own, which cores of one machine do not have. With `--clocks modelled` no real ranks run, and all figures
are of processor time, which other programs do not lengthen much.
"""

from __future__ import annotations

import argparse
import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any

import torch

from benchmarks.projections.network import COLLECTIVE_US, add_exchange
from benchmarks.projections.virtual_engine import CommunicationTimes, virtual_engine
from benchmarks.shared.categories import read_categories
from benchmarks.shared.inputs import find_model
from benchmarks.shared.options import add_output, add_stored, ascending_numbers, make_parser, parse
from benchmarks.shared.ranks import (
    WAIT_S,
    Work,
    answer_about_times,
    ask,
    ask_and_learn,
    assembled,
    take_core,
    waiting_ranks,
)
from benchmarks.shared.report import bullets, markdown_table, progress, publish
from lp import Auto, Autoregressive, Engine, Lookahead, PromptLookup, Sampling, Stopping
from lp.engine.builder import EngineSettings
from lp.model.checkpoint import DTYPES, ModelSettings
from lp.model.checkpoint_info import read_checkpoint_info
from lp.model.gguf import unpacked_folder
from lp.request import DecodingMethod
from lp.runner.step_times.measure import StepTimesSource
from lp.statistics import Statistics
from parallel.build import check
from parallel.mesh import Mode, ParallelSettings

# Plain decoding, with whose speed that of the other methods is compared.
PLAIN = "autoregressive"
KINDS: dict[str, type[DecodingMethod]] = {
    PLAIN: Autoregressive, "auto": Auto, "lookahead": Lookahead, "prompt_lookup": PromptLookup
}  # fmt: skip
MEASURED, MODELLED = "measured", "modelled"
# What precedes work that does not count.
WARM_UP: Work = ("warm up",)
ALONE = "one rank"
# Tensor-parallel ranks of a group that computes a part of every tree.
GROUP = 2
MODES = ("auto", "lp", "tp", "pp", "lpxtp")
# Modes that are not played: the stages of a pipeline, and what `auto` adds to lp, the splitting of prompts.
NOT_PLAYED = ("auto", "pp")


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


@dataclass
class Layouts:
    """timed: real ranks, one rank on one core first. crowded: more real ranks than cores, of which only texts count.
    modelled: played ranks, a single one first. names: of all with several ranks. refused: why the model cannot be
    split, for each layout that is left out.
    """

    timed: list[Layout] = field(default_factory=list)
    crowded: list[Layout] = field(default_factory=list)
    modelled: list[Layout] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)

    @property
    def running(self) -> list[Layout]:
        """Returns the layouts that take turns; the first is one rank on one core."""
        return [*self.timed, *self.modelled]


@dataclass
class Decoded:
    """What streams have done together while all of them decoded.

    tokens: of all streams. steps, rows: of each stream, added up. texts: all tokens of each stream. category: of the
    text of a single stream.
    """

    tokens: int = 0
    seconds: float = 0.0
    steps: int = 0
    rows: int = 0
    texts: list[list[int]] = field(default_factory=list)
    category: str = ""

    @property
    def rate(self) -> float:
        """Returns the tokens a second of all streams."""
        return self.tokens / self.seconds

    @staticmethod
    def sum(parts: Sequence[Decoded]) -> Decoded:
        """What was done one after another."""
        return Decoded(
            sum(one.tokens for one in parts),
            sum(one.seconds for one in parts),
            sum(one.steps for one in parts),
            sum(one.rows for one in parts),
            [text for one in parts for text in one.texts],
        )


def main() -> None:
    arguments = parse_arguments()
    layouts = make_layouts(arguments)
    found = Found(layouts, arguments)
    for layout in layouts.crowded:
        with started(layout, arguments) as group:
            for work in progress(works(arguments, layout), f"texts of {layout.name}", "work"):
                found.note(key_of(layout), work, ask(group, work))
    with ExitStack() as stack:
        groups = [(layout, stack.enter_context(started(layout, arguments))) for layout in layouts.running]
        turns = [
            (layout, group, work)
            for work in works(arguments, layouts.running[0])
            for layout, group in groups
            if work in works(arguments, layout)
        ]
        for _, group, work in progress(turns, "warming up", "work"):  # memory is made and drafts are learnt
            ask_and_learn(group, WARM_UP + work)
        for layout, group, work in progress(turns * arguments.rounds, "measuring", "work"):
            found.note(key_of(layout), work, ask_and_learn(group, work))
    name = Path(arguments.model).name.removesuffix(".gguf")
    stored, only = "-stored" * arguments.stored, "" if len(arguments.clocks) > 1 else f"-{arguments.clocks[0]}"
    publish(
        arguments.output,
        f"modes-{name}-{arguments.dtype}{stored}-{'-'.join(map(str, arguments.ranks))}-ranks"
        f"{only}{'-' * bool(arguments.name)}{arguments.name}",
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
    parser.add_argument(
        "--methods", type=read_method, nargs="+", default=[read_method(PLAIN), read_method("auto")], metavar="METHOD",
        help="autoregressive, which others are compared with; auto; lookahead:W,N,G; or prompt_lookup:N,G "
        "(default: autoregressive auto)",
    )  # fmt: skip
    parser.add_argument(
        "--clocks", nargs="+", default=[MEASURED, MODELLED], choices=[MEASURED, MODELLED],
        help="real ranks, or played ones on a virtual clock (default: both)",
    )  # fmt: skip
    parser.add_argument("--streams", type=ascending_numbers, default=[1, 2, 4], help="texts at once (default 1,2,4)")
    parser.add_argument(
        "--texts", type=int, default=1, help="decoded in all, one for each stream at once (default %(default)s)"
    )
    parser.add_argument(
        "--longest-prompt", type=int, default=100, metavar="TOKENS", help="its end is continued (default %(default)s)"
    )
    parser.add_argument(
        "--prompt-tokens", type=ascending_numbers, default=[547], help="prompts that are timed (default 547)"
    )
    parser.add_argument("--max-new-tokens", type=int, default=64, help="of each text (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="default %(default)s")
    parser.add_argument("--prompts", type=Path, metavar="FOLDER", help="folder with the prompts (default: our own)")
    add_exchange(parser, "modelled: of an exchange of all ranks")
    parser.add_argument(
        "--collective-us", type=float, default=COLLECTIVE_US, metavar="US",
        help="modelled: of a sum over the ranks of tp (default %(default)g, as measured)",
    )  # fmt: skip
    parser.add_argument(
        "--step-times", default=StepTimesSource.measure.value, choices=[one.value for one in StepTimesSource],
        help="of real ranks; auto knows only small trees at first (default %(default)s)",
    )  # fmt: skip
    parser.add_argument("--name", default="", help="of the result files, behind the ranks")
    add_stored(parser)
    add_output(parser)
    arguments = parse(parser)
    if arguments.ranks[0] < 2 or min(arguments.rounds, arguments.texts, arguments.longest_prompt) < 1:
        parser.error("--ranks must be at least 2, and --rounds, --texts and --longest-prompt at least 1")
    arguments.methods, arguments.modes = dict(arguments.methods), arguments.modes.split(",")
    if unknown := sorted(set(arguments.modes) - set(MODES)):
        parser.error(f"--modes {unknown[0]} is unknown; use {', '.join(MODES)}")
    arguments.model = find_model(arguments.model)
    if not arguments.stored:
        arguments.model = unpacked_folder(arguments.model)
    return arguments


def read_method(text: str) -> tuple[str, DecodingMethod]:
    """Reads a method and its first settings, like lookahead:15,5,15, and its name: the type of an option."""
    name, _, numbers = text.partition(":")
    settings = numbers.split(",") if numbers else []
    if name not in KINDS or not all(number.isdecimal() for number in settings):
        raise argparse.ArgumentTypeError(f"{text!r} is none of {', '.join(KINDS)}, or its settings are no numbers")
    try:
        method = KINDS[name](*map(int, settings))
    except TypeError:
        raise argparse.ArgumentTypeError(f"{text!r} has too many settings") from None
    return f"{name} ({', '.join(settings)})" if settings else name, method


def make_layouts(arguments: argparse.Namespace) -> Layouts:
    """All layouts that the model can have."""
    num_cores = len(os.sched_getaffinity(0))
    found, alone = Layouts(), Layout(ALONE)
    if MEASURED in arguments.clocks:
        found.timed += [alone, Layout(f"{ALONE}, {num_cores} threads", threads=num_cores)][:num_cores]
    if MODELLED in arguments.clocks:
        found.modelled.append(replace(alone, is_modelled=True))
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
            found.names.append(layout.name)
            if MEASURED in arguments.clocks:
                (found.crowded if is_crowded(layout) else found.timed).append(layout)
            if MODELLED in arguments.clocks and mode not in NOT_PLAYED:
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
    if layout.name == ALONE and "pp" in arguments.modes:
        streams |= {-(-number // ranks) for number in arguments.streams for ranks in arguments.ranks}
    decoded: list[Work] = [("decode", method, number) for method in arguments.methods for number in sorted(streams)]
    if is_crowded(layout) or (layout.is_modelled and layout.degrees.get("lp", 1) > layout.tp_degree == 1):
        return decoded
    if arguments.clocks == [MODELLED] and {"tp", "lpxtp"}.isdisjoint(arguments.modes):
        return decoded  # no other ranks read a prompt
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
                    connection.send(decode_all(engine, prompts, method, streams, arguments, clock))
                case ("warm up", "decode", method, streams):
                    connection.send(decode_all(engine, prompts, method, streams, {**arguments, "texts": 1}, clock))
                case ("prompt", tokens) | ("warm up", "prompt", tokens):
                    connection.send(read_prompt(engine, prompts, tokens, clock))
                case _:
                    connection.send(answer_about_times(engine, work))


@contextmanager
def opened(layout: Layout, rank: int, port: int, arguments: dict[str, Any]) -> Iterator[tuple[Engine, Clock]]:
    """The engine of one rank, or of played ranks, and the clock by which it is timed."""
    model = ModelSettings(arguments["model"], arguments["dtype"], "cpu")
    if layout.is_modelled:
        times = CommunicationTimes(arguments["exchange_us"] * 1e-6, arguments["collective_us"] * 1e-6)
        yield virtual_engine(model, layout.degrees.get("lp", 1), layout.tp_degree, times)
        return
    settings = EngineSettings(model, step_times=StepTimesSource(arguments["step_times"]))
    with assembled(settings, layout.settings, rank, layout.ranks, port) as engine:
        yield engine, time.perf_counter


def encode_prompts(engine: Engine, folder: Path | None) -> list[tuple[str, list[int]]]:
    """Prompts with their categories."""
    tokenizer = engine.checkpoint.tokenizer
    return [(one.category, tokenizer.encode(one.for_model(tokenizer))) for one in read_categories(folder, 64)]


def decode_all(
    engine: Engine, prompts: list[tuple[str, list[int]]], method: str, streams: int, arguments: dict[str, Any],
    clock: Clock,
) -> list[Decoded]:  # fmt: skip
    """Decodes all texts, so many at once."""
    num_texts, longest = -(-arguments["texts"] // streams) * streams, arguments["longest_prompt"]
    asked = [prompts[number * len(prompts) // num_texts] for number in range(num_texts)]
    decoding, length, found = arguments["methods"][method], arguments["max_new_tokens"], list[Decoded]()
    for first in range(0, num_texts, streams):
        group = asked[first : first + streams]
        found.append(decode(engine, [prompt[-longest:] for _, prompt in group], decoding, length, clock))
        found[-1].category = group[0][0] if streams == 1 else ""
    return found


def decode(
    engine: Engine, prompts: list[list[int]], method: DecodingMethod, max_new_tokens: int, clock: Clock
) -> Decoded:
    """Decodes texts side by side. They are timed from where all have begun, for as many tokens as are wanted of all."""
    stopping, sampling = Stopping(ignore_eos=True), Sampling(temperature=0.0, seed=0)
    texts: dict[str, list[int]] = {}
    for number, prompt in enumerate(prompts):
        request = engine.request_builder.build(prompt, method, sampling, stopping, request_id=str(number))
        texts[request.id] = []
        engine.add_request(request)
    begin, found, stats = 0.0, Decoded(), dict[str, Statistics]()
    while found.tokens < len(prompts) * max_new_tokens:  # the ranks end in the same step
        outputs = engine.step()
        for output in outputs:
            texts[output.request_id] += output.tokens
            stats[output.request_id] = output.stats
        if begin:
            found.tokens += sum(len(output.tokens) for output in outputs)
            found.steps += len(outputs)
        elif all(texts.values()):
            begin, found.rows = clock(), -sum(one.rows for one in stats.values())
    found.seconds = clock() - begin
    found.rows += sum(one.rows for one in stats.values())
    found.texts = [text[:max_new_tokens] for text in texts.values()]
    for name in texts:
        engine.abort(name)
    while not engine.is_idle:
        engine.step()
    return found


def read_prompt(engine: Engine, prompts: list[tuple[str, list[int]]], tokens: int, clock: Clock) -> float:
    """Seconds to the first token of a prompt of this length, of which nothing is kept."""
    engine.reset_prefixes()
    text = [token for _, prompt in prompts for token in prompt]
    prompt = (text * (1 + tokens // len(text)))[:tokens]
    began = clock()
    engine.generate(prompt, decode=Autoregressive(), sampling=Sampling(temperature=0.0, seed=0), stopping=Stopping(1))
    return clock() - began


# Results


class Found:
    """What all layouts have done."""

    def __init__(self, layouts: Layouts, arguments: argparse.Namespace) -> None:
        self._layouts, self._arguments = layouts, arguments
        self._decoded: dict[tuple[str, str, int], list[Decoded]] = defaultdict(list)
        self._by_category: dict[tuple[str, str, str], list[Decoded]] = defaultdict(list)
        self._seconds: dict[tuple[str, int], list[float]] = defaultdict(list)
        self._base = key_of(layouts.running[0])

    def note(self, layout: str, work: Work, answer: Any) -> None:
        match work:
            case ("decode", method, streams):
                self._decoded[layout, method, streams].append(Decoded.sum(answer))
                for category in filter(None, dict.fromkeys(one.category for one in answer)):
                    own = [one for one in answer if one.category == category]
                    self._by_category[layout, method, category].append(Decoded.sum(own))
            case ("prompt", tokens):
                self._seconds[layout, tokens].append(answer)

    def describe(self) -> str:
        arguments, parts = self._arguments, list[str]()
        notes = [
            "Tokens a second of all streams, over those of one rank on one core. Medians of rounds: "
            f"{arguments.rounds}.",
            f"Texts: {arguments.texts}, or one for each stream if these are more; {arguments.max_new_tokens} new "
            f"tokens each, also beyond the end of an answer, after the last {arguments.longest_prompt} tokens of a "
            "prompt.",
        ]
        if MEASURED in arguments.clocks:
            notes.append("Measured: real ranks, each on a core of its own, which share one memory.")
            parts += [
                "## Measured",
                *self._speeds(ALONE, [one.name for one in self._layouts.timed[1:]], self._measured),
            ]
        if MODELLED in arguments.clocks:
            notes.append(
                "Modelled: one process on one core plays the ranks, takes the processor time of each rank's part of "
                f"every step, and counts the slowest part. An exchange of all ranks costs {arguments.exchange_us:g} "
                f"us, a sum over tp {arguments.collective_us:g} us, as measured. Each rank has its own memory. Answers "
                "are those of one rank, which is played as well."
            )
            if "pp" in arguments.modes:
                notes.append(
                    "Modelled, pp: a token of each of S streams takes as long as one rank takes for a step of S/N "
                    "streams."
                )
            parts += ["## Modelled", *self._speeds(modelled(ALONE), self._layouts.names, self._modelled)]
        if self._by_category and 1 in self._arguments.streams:
            parts += ["## One stream by category", self._categories()]
        parts += ["## Tokens and rows of a stream's step", self._steps(), "## Texts", self._compared()]
        if self._seconds:
            parts += ["## Time to the first token of a prompt", self._prompts()]
        return "\n\n".join([bullets([*notes, *self._layouts.refused]), *parts])

    def _rate(self, layout: str, method: str, streams: int) -> float:
        return median(one.rate for one in self._decoded[layout, method, streams])

    def _measured(self, layout: str, method: str, streams: int) -> float:
        return self._rate(layout, method, streams) / self._rate(ALONE, method, streams)

    def _modelled(self, layout: str, method: str, streams: int) -> float:
        alone = partial(self._rate, modelled(ALONE), method)
        if (ranks := layout.removeprefix("pp=")) != layout:
            batch = -(-streams // int(ranks))
            return streams / batch * alone(batch) / alone(streams)
        return self._rate(modelled(layout), method, streams) / alone(streams)

    def _decodings(self) -> list[tuple[str, int]]:
        return [(method, streams) for method in self._arguments.methods for streams in self._arguments.streams]

    def _speeds(self, alone: str, names: Sequence[str], ratio: Callable[[str, str, int], float]) -> list[str]:
        """Tables of speeds over one rank with the same method, and over plain decoding on one rank.

        alone: the name under which one rank's figures are kept. ratio: gives the former.
        """
        own, over_plain = [], []
        for method, streams in self._decodings():
            rate, ratios = self._rate(alone, method, streams), [ratio(name, method, streams) for name in names]
            own.append((method, streams, f"{rate:.1f}", *(f"{one:.2f}x" for one in ratios)))
            if method != PLAIN and PLAIN in self._arguments.methods:
                gain = rate / self._rate(alone, PLAIN, streams)
                over_plain.append((method, streams, *(f"{gain * one:.2f}x" for one in (1, *ratios))))
        columns = ["method", "streams", f"{ALONE}, tokens/s", *names]
        parts = ["Over one rank with the same method:", markdown_table(columns, own)]
        if over_plain:
            columns = ["method", "streams", ALONE, *names]
            parts += ["Over plain decoding on one rank:", markdown_table(columns, over_plain)]
        return parts

    def _categories(self) -> str:
        layouts, rows = self._layouts.running, []
        for method, category in dict.fromkeys((method, category) for _, method, category in self._by_category):
            rates = {
                one: median(round.rate for round in self._by_category[key_of(one), method, category]) for one in layouts
            }
            alone = {one.is_modelled: rates[one] for one in layouts if one.name == ALONE and one.threads == 1}
            others = [one for one in layouts if one.name != ALONE]
            cells = [f"{rates[one] / alone[one.is_modelled]:.2f}x" for one in others]
            rows.append((method, category, *(f"{rate:.1f}" for rate in alone.values()), *cells))
        alone_names = [f"{key_of(one)}, tokens/s" for one in layouts if one.name == ALONE]
        columns = ["method", "category", *alone_names, *(key_of(one) for one in layouts if one.name != ALONE)]
        return "Over one rank with the same method:\n\n" + markdown_table(columns, rows)

    def _steps(self) -> str:
        keys = list(dict.fromkeys(key for key, _, _ in self._decoded))
        rows = []
        for method, streams in self._decodings():
            totals = [Decoded.sum(self._decoded[key, method, streams]) for key in keys]
            cells = [f"{one.tokens / one.steps:.2f} ({one.rows / one.steps:.0f})" for one in totals]
            rows.append((method, streams, *cells))
        return "Tokens, and rows in brackets:\n\n" + markdown_table(["method", "streams", *keys], rows)

    def _compared(self) -> str:
        layouts = [key_of(one) for one in [*self._layouts.running[1:], *self._layouts.crowded]]
        rows = [(one, *(self._num_same(one, *decoding) for decoding in self._decodings())) for one in layouts]
        columns = [f"{method}, {streams}" for method, streams in self._decodings()]
        return "How many texts are those of one rank:\n\n" + markdown_table(["ranks", *columns], rows)

    def _num_same(self, layout: str, method: str, streams: int) -> str:
        """How many texts are those of one rank, as far as both go: some streams get ahead of others."""
        own, base = (self._decoded[key, method, streams][-1].texts for key in (layout, self._base))
        pairs = [zip(*pair, strict=False) for pair in zip(own, base, strict=True)]
        return f"{sum(all(one == other for one, other in pair) for pair in pairs)}/{len(own)}"

    def _prompts(self) -> str:
        keys, played = list(dict.fromkeys(key for key, _ in self._seconds)), map(key_of, self._layouts.modelled)
        alone = {key: ALONE for key in keys} | dict.fromkeys(played, modelled(ALONE))
        rows = []
        for tokens in self._arguments.prompt_tokens:
            seconds = {key: median(self._seconds[key, tokens]) for key in keys}
            cells = [f"{seconds[alone[key]] / seconds[key]:.2f}x" for key in keys]
            rows.append((f"{tokens:,}", f"{1000 * seconds[self._base]:.0f}", *cells))
        columns = ["prompt tokens", f"{self._base}, ms", *keys]
        return "How many times as fast as one rank on one core:\n\n" + markdown_table(columns, rows)

    def to_json(self) -> dict[str, Any]:
        decoded = {
            " | ".join(map(str, key)): [
                {"tokens_per_s": one.rate, "tokens": one.tokens, "steps": one.steps, "rows": one.rows} for one in values
            ]
            for key, values in self._decoded.items()
        }
        categories = {" | ".join(key): [one.rate for one in values] for key, values in self._by_category.items()}
        return {
            "decoded": decoded,
            "tokens_per_s_by_category": categories,
            "prompt_seconds": {" | ".join(map(str, key)): values for key, values in self._seconds.items()},
        }


if __name__ == "__main__":
    main()
