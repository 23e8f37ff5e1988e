"""Compares lookahead, tensor and pipeline parallelism of ranks on one host with one rank, in one run.

    python -m benchmarks.modes --prompts FOLDER
    python -m benchmarks.modes --dtype float32 --streams 1,4,32 --prompt-tokens 547,2000 --rounds 5

Every rank has one core; one rank with a thread on each core is measured as well. All of them stay loaded, and each
round measures one after the other, so that a change of the machine's speed affects all. Decoding is timed while all
streams decode, with their prompts behind them. Shown are medians over the rounds, as ratios to one rank on one core.

For pp the table also shows what its step times allow. With two batches under way, each of half of the streams, every
stage is busy, and a token of each stream takes as long as one rank takes for a step of half of the streams.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch
from torch.distributed import TCPStore

from benchmarks.shared.categories import read_categories
from benchmarks.shared.inputs import find_model
from benchmarks.shared.options import add_output, ascending_numbers, make_parser, parse
from benchmarks.shared.report import markdown_table, publish
from lp import Auto, Autoregressive, Engine, Sampling, Stopping
from lp.engine.builder import EngineSettings
from lp.model.checkpoint import DTYPES, ModelSettings
from lp.request import DecodingMethod
from parallel.build import MeshTopology
from parallel.mesh import Mode, ParallelSettings, make_mesh, open_store

METHODS: dict[str, DecodingMethod] = {"autoregressive": Autoregressive(), "auto": Auto()}
ALONE = "one rank"
WAIT_S = 600.0
# Tokens of a prompt that streams continue: the end of it.
MOST_PROMPT = 100


@dataclass(frozen=True)
class Layout:
    """Some ranks that serve together. mode: as parallel.mode. threads: of each rank."""

    name: str
    mode: str
    ranks: int
    threads: int = 1


class Decoded(NamedTuple):
    """What some streams have done together. rate: tokens a second of all of them, while all decode. texts: tokens."""

    rate: float
    texts: list[list[int]]


def main() -> None:
    arguments = parse_arguments()
    found = Found()
    layouts = make_layouts(arguments)
    with ExitStack() as stack:
        groups = {layout.name: stack.enter_context(started(layout, arguments)) for layout in layouts}
        for number in range(arguments.rounds + 1):  # in the first one, memory is made and drafts are learnt
            print(f"round {number} of {arguments.rounds}" if number else "warming up", flush=True)
            for work in works(arguments):
                for layout in layouts:
                    answer = ask(groups[layout.name], work)
                    if number:
                        found.note(layout.name, work, answer)
    name = Path(arguments.model).name.removesuffix(".gguf")
    publish(
        arguments.output,
        f"modes-{name}-{arguments.dtype}-{arguments.ranks}-ranks",
        f"Modes of parallelism on {arguments.ranks} ranks of one core each: {name}, {arguments.dtype}",
        found.describe(layouts, arguments),
        found.to_json(),
    )


def parse_arguments() -> argparse.Namespace:
    parser = make_parser(__doc__)
    parser.add_argument("--model", default="smollm2", help="smollm2 or a checkpoint folder (default %(default)s)")
    parser.add_argument("--dtype", default="bfloat16", choices=DTYPES, help="default %(default)s")
    parser.add_argument("--ranks", type=int, default=2, help="processes on this host (default %(default)s)")
    parser.add_argument("--modes", default="lp,tp,pp", help="modes, with commas between them (default %(default)s)")
    parser.add_argument("--streams", type=ascending_numbers, default=[1, 2, 4], help="texts at once (default 1,2,4)")
    parser.add_argument(
        "--prompt-tokens", type=ascending_numbers, default=[547], help="prompts that are timed (default 547)"
    )
    parser.add_argument("--max-new-tokens", type=int, default=64, help="of each text (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="default %(default)s")
    parser.add_argument("--prompts", type=Path, metavar="FOLDER", help="folder with the prompts (default: our own)")
    add_output(parser)
    arguments = parse(parser)
    if arguments.ranks < 2 or arguments.rounds < 1:
        parser.error("--ranks must be at least 2 and --rounds at least 1")
    if unknown := sorted(set(arguments.modes.split(",")) - {"lp", "tp", "pp"}):
        parser.error(f"--modes {unknown[0]} is unknown; use lp, tp, pp")
    arguments.model = find_model(arguments.model)
    return arguments


def make_layouts(arguments: argparse.Namespace) -> list[Layout]:
    modes = [Layout(f"{mode}={arguments.ranks}", mode, arguments.ranks) for mode in arguments.modes.split(",")]
    threads = Layout(f"one rank, {arguments.ranks} threads", "lp", 1, arguments.ranks)
    return [Layout(ALONE, "lp", 1), threads, *modes]


Work = tuple[Any, ...]


def works(arguments: argparse.Namespace) -> list[Work]:
    """What every layout does in a round: ("decode", method, streams) or ("prompt", tokens)."""
    streams = sorted({*arguments.streams, *(-(-number // 2) for number in arguments.streams if number > 1)})
    decoded = [("decode", method, number) for method in METHODS for number in streams]
    return [*decoded, *(("prompt", number) for number in arguments.prompt_tokens)]


# Ranks


@contextmanager
def started(layout: Layout, arguments: argparse.Namespace) -> Iterator[list[Connection]]:
    """Starts the ranks of a layout, which wait for work."""
    context = multiprocessing.get_context("spawn")
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    connections, processes = [], []
    try:
        for rank in range(layout.ranks):
            own, other = context.Pipe()
            process = context.Process(target=run_rank, args=(other, rank, store.port, layout, vars(arguments)))
            process.start()
            other.close()
            connections.append(own)
            processes.append(process)
        ask(connections, ("ready",))
        yield connections
        for connection in connections:
            connection.send(("end",))
        for process in processes:
            process.join(WAIT_S)
    finally:
        for process in processes:
            process.kill()


def ask(connections: list[Connection], work: Work) -> Any:
    """Has all ranks of a layout do some work; returns the first one's answer."""
    for connection in connections:
        connection.send(work)
    try:
        answers = [connection.recv() for connection in connections]
    except EOFError:
        raise SystemExit("a rank failed; its error is printed above") from None
    return answers[0]


def run_rank(connection: Connection, rank: int, port: int, layout: Layout, arguments: dict[str, Any]) -> None:
    """One rank's process."""
    os.environ.update(
        RANK=str(rank), WORLD_SIZE=str(layout.ranks), LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE=str(layout.ranks),
        MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), TORCHELASTIC_USE_AGENT_STORE="True",
    )  # fmt: skip
    cores = sorted(os.sched_getaffinity(0))
    if layout.threads == 1:
        os.sched_setaffinity(0, {cores[rank % len(cores)]})
    torch.set_num_threads(layout.threads)
    settings = ParallelSettings(mode=Mode(layout.mode), timeout_s=WAIT_S)
    mesh = make_mesh(settings, "cpu")
    place = MeshTopology(settings, mesh, open_store(mesh, WAIT_S))
    model = ModelSettings(arguments["model"], arguments["dtype"], "cpu")
    engine = Engine.assemble(EngineSettings(model), place)
    prompts = encode_prompts(engine, arguments["prompts"])
    while (work := connection.recv())[0] != "end":
        match work:
            case ("decode", method, streams):
                connection.send(decode(engine, prompts, METHODS[method], streams, arguments["max_new_tokens"]))
            case ("prompt", tokens):
                connection.send(read_prompt(engine, prompts, tokens))
            case _:
                connection.send(None)
    place.close()


def encode_prompts(engine: Engine, folder: Path | None) -> list[list[int]]:
    tokenizer = engine.checkpoint.tokenizer
    return [tokenizer.encode(prompt.for_model(tokenizer)) for prompt in read_categories(folder, 64)]


def decode(
    engine: Engine, prompts: list[list[int]], method: DecodingMethod, streams: int, max_new_tokens: int
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
            began, first = time.perf_counter(), done
    rate = (done - first) / (time.perf_counter() - began)
    for name in texts:
        engine.abort(name)
    while not engine.is_idle:
        engine.step()
    return Decoded(rate, [text[:max_new_tokens] for text in texts.values()])


def read_prompt(engine: Engine, prompts: list[list[int]], tokens: int) -> float:
    """Seconds to the first token of a prompt of this length, of which nothing is kept."""
    engine.reset_prefixes()
    text = [token for prompt in prompts for token in prompt]
    prompt = (text * (1 + tokens // len(text)))[:tokens]
    began = time.perf_counter()
    engine.generate(prompt, decode=Autoregressive(), sampling=Sampling(temperature=0.0, seed=0), stopping=Stopping(1))
    return time.perf_counter() - began


# Results


class Found:
    """What all layouts have done."""

    def __init__(self) -> None:
        self.rates: dict[tuple[str, str, int], list[float]] = defaultdict(list)
        self.seconds: dict[tuple[str, int], list[float]] = defaultdict(list)
        self.texts: dict[tuple[str, int], dict[str, list[list[int]]]] = defaultdict(dict)

    def note(self, layout: str, work: Work, answer: Any) -> None:
        match work:
            case ("decode", method, streams):
                self.rates[layout, method, streams].append(answer.rate)
                self.texts[method, streams][layout] = answer.texts
            case ("prompt", tokens):
                self.seconds[layout, tokens].append(answer)

    def rate(self, layout: str, method: str, streams: int) -> float:
        return median(self.rates[layout, method, streams])

    def describe(self, layouts: list[Layout], arguments: argparse.Namespace) -> str:
        return "\n\n".join([self._decoding(layouts, arguments), self._prompts(layouts, arguments)])

    def _decoding(self, layouts: list[Layout], arguments: argparse.Namespace) -> str:
        rows = []
        for method in METHODS:
            for streams in arguments.streams:
                alone = self.rate(ALONE, method, streams)
                half = self.rate(ALONE, method, -(-streams // 2))
                allowed = 2 * half / alone if streams > 1 else 1.0
                cells = [f"{self.rate(layout.name, method, streams) / alone:.2f}x" for layout in layouts[1:]]
                same = [self._num_same(layout.name, method, streams) for layout in layouts[1:]]
                rows.append([method, str(streams), f"{alone:.0f}", *cells, f"{allowed:.2f}x", " ".join(same)])
        names = [layout.name for layout in layouts[1:]]
        return "Tokens a second, over those of one rank on one core:\n\n" + markdown_table(
            ["method", "streams", f"{ALONE}, tokens/s", *names, "pp may reach", "texts equal to one rank's"], rows
        )

    def _num_same(self, layout: str, method: str, streams: int) -> str:
        """How many texts are those of one rank, as far as both go: some streams get ahead of others."""
        found = self.texts[method, streams]
        pairs = [zip(*pair, strict=False) for pair in zip(found[layout], found[ALONE], strict=True)]
        return f"{sum(all(one == other for one, other in pair) for pair in pairs)}/{streams}"

    def _prompts(self, layouts: list[Layout], arguments: argparse.Namespace) -> str:
        rows = []
        for tokens in arguments.prompt_tokens:
            alone = median(self.seconds[ALONE, tokens])
            cells = [f"{alone / median(self.seconds[layout.name, tokens]):.2f}x" for layout in layouts[1:]]
            rows.append([f"{tokens:,}", f"{1000 * alone:.0f}", *cells])
        names = [layout.name for layout in layouts[1:]]
        return "The time to the first token of a prompt; how many times as fast as one rank on one core:\n\n" + (
            markdown_table(["prompt tokens", f"{ALONE}, ms", *names], rows)
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "rates": {" | ".join(map(str, key)): values for key, values in self.rates.items()},
            "prompt_seconds": {" | ".join(map(str, key)): values for key, values in self.seconds.items()},
        }


if __name__ == "__main__":
    main()
