"""Compares the steps of a GGUF file, whose weights stay packed, with one pass over its bytes.

    python -m benchmarks.packed_steps --layers 4 --dtype bfloat16 --threads 2

The file has random blocks in the mix of types Q4_K_M and the shapes of --config; it is written to a temporary folder,
which is removed at the end with all that was cached for it. --model measures a file that is there instead. The tables
have the time to load it, the first time and again; by how much the process's own memory grew meanwhile, at most and at
the end (pages of the file are mapped as well, which the system can take back); the time of steps by their rows; and
what a step is made of. A step must read each weight but the table of embeddings once: its floor is the time in which
the same threads read a buffer of as many bytes. It is read right before and after the steps of each round, and they are
compared with the mean of the two, as the rate of memory changes. With --llama-bench, llama.cpp decodes on the same
file. Linux only.
"""

from __future__ import annotations

import argparse
import gc
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from threading import Event, Thread

import torch
from transformers import LlamaConfig

from benchmarks.peer_engines.base import Unavailable
from benchmarks.peer_engines.llama_build import build_programs
from benchmarks.peer_engines.llama_programs import bench_seconds
from benchmarks.peer_engines.llama_programs import run as run_program
from benchmarks.shared.filled_cache import fill_cache
from benchmarks.shared.inputs import find_model
from benchmarks.shared.options import add_output, add_threads, ascending_numbers, make_parser, parse
from benchmarks.shared.random_gguf import write_gguf
from benchmarks.shared.report import markdown_table, progress, publish
from benchmarks.shared.shapes import SHAPES, make_config
from benchmarks.steps.forward_parts import ForwardParts, measure_parts
from benchmarks.steps.machine_rates import RateGauge
from benchmarks.steps.step_curve import TIMED, make_tree, time_forwards
from lp.model.causal import CausalModel
from lp.model.checkpoint import DTYPES, Checkpoint, ModelSettings, load
from lp.model.gguf_header import read_header
from lp.platform import disk_cache

# Shapes that Q4_K_M files can have here.
LLAMAS = [name for name, sizes in SHAPES.items() if "model_type" not in sizes]
# Tokens that llama-bench decodes.
BENCH_TOKENS = 16
# Seconds between two looks at the memory of the process.
LOOK_S = 0.02
EMBEDDING = "token_embd.weight"
HEAD = "output.weight"


@dataclass
class Loading:
    """seconds, and the bytes by which the process's own memory grew, at most and at the end."""

    seconds: float
    peak: int
    kept: int


@dataclass
class Round:
    """Steps of some rows between two readings of memory. step_s: of a step. floor_s: of a reading of as many bytes."""

    step_s: float
    floor_s: float

    @property
    def ratio(self) -> float:
        return self.step_s / self.floor_s


@dataclass
class Found:
    """What was measured of one file. file_bytes: its size. step_bytes: that a step reads of it. rounds: by the number
    of rows. llama_s: of a token of llama.cpp.
    """

    file_bytes: int
    step_bytes: int
    loadings: list[Loading]
    rounds: dict[int, list[Round]] = field(default_factory=dict)
    parts: list[ForwardParts] = field(default_factory=list)
    llama_s: float | None = None


def main() -> None:
    arguments = parse_arguments()
    llama_bench = find_llama_bench() if arguments.llama_bench else None
    with opened_file(arguments) as file:
        found = measure(file, arguments)
        if llama_bench is not None:
            found.llama_s = time_llama(llama_bench, file, arguments.threads)
    name = file.stem
    publish(
        arguments.output,
        f"packed_steps-{name}-{arguments.dtype}",
        f"Steps of weights as they are in the file: {name}, {arguments.dtype}",
        describe(found, arguments.cached),
        asdict(found),
    )


def parse_arguments() -> argparse.Namespace:
    parser = make_parser(__doc__)
    parser.add_argument("--config", default="llama-3.1-8b", choices=LLAMAS, help="default %(default)s")
    parser.add_argument("--layers", type=int, help="so many layers instead of those of the shape")
    parser.add_argument("--model", help="a GGUF file, smollm2 or gemma3-270m, instead of random blocks")
    parser.add_argument("--dtype", default="bfloat16", choices=DTYPES, help="default %(default)s")
    rows = [1, 4, 16, 64]
    parser.add_argument("--rows", type=ascending_numbers, default=rows, metavar="R,R,...", help="default 1,4,16,64")
    parser.add_argument("--cached", type=int, default=64, help="cached tokens (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="default %(default)s")
    parser.add_argument("--folder", type=Path, help="where the file is written (default: the temporary folder)")
    parser.add_argument("--llama-bench", action="store_true", help="let llama.cpp decode on the file as well")
    add_threads(parser)
    add_output(parser)
    arguments = parse(parser)
    if min(arguments.rounds, arguments.cached, arguments.layers or 1) < 1:
        parser.error("--rounds, --cached and --layers must be at least 1")
    return arguments


@contextmanager
def opened_file(arguments: argparse.Namespace) -> Iterator[Path]:
    """The file to measure. A random one has a cache of its own in the same temporary folder."""
    if arguments.model:
        yield Path(find_model(arguments.model))
        return
    sizes = SHAPES[arguments.config] | ({"num_hidden_layers": arguments.layers} if arguments.layers else {})
    config = make_config(sizes)
    assert isinstance(config, LlamaConfig)
    with TemporaryDirectory(prefix="lookahead-parallel-", dir=arguments.folder) as folder:
        os.environ[disk_cache.VARIABLE] = str(Path(folder, "cache"))
        layers = f"-{arguments.layers}-layers" if arguments.layers else ""
        file = Path(folder, f"random-{arguments.config}{layers}.Q4_K_M.gguf")
        write_gguf(file, config)
        yield file


def measure(file: Path, arguments: argparse.Namespace) -> Found:
    """Raises SystemExit if the file cannot be loaded."""
    sizes = {name: one.num_bytes for name, one in read_header(file).tensors.items()}
    read = sum(sizes.values()) - (sizes[EMBEDDING] if HEAD in sizes else 0)
    settings = ModelSettings(str(file), arguments.dtype, "cpu")
    _, first = watched(lambda: load(settings))
    del _
    gc.collect()
    checkpoint, again = watched(lambda: load(settings))
    found = Found(file.stat().st_size, read, [first, again])
    measure_steps(checkpoint.model, found, arguments)
    return found


def watched(run: Callable[[], Checkpoint]) -> tuple[Checkpoint, Loading]:
    """Loads a checkpoint while a thread looks at the memory."""
    before, sizes, is_done = own_memory(), [0], Event()

    def look() -> None:
        while not is_done.wait(LOOK_S):
            sizes.append(own_memory())

    watch, began = Thread(target=look, daemon=True), time.perf_counter()
    watch.start()
    try:
        made = run()
    except ValueError as error:
        raise SystemExit(str(error)) from None
    seconds = time.perf_counter() - began
    is_done.set()
    watch.join()
    gc.collect()
    return made, Loading(seconds, max(sizes) - before, own_memory() - before)


def own_memory() -> int:
    """The bytes of this process in memory that belong to no file."""
    found = re.search(r"RssAnon:\s+(\d+) kB", Path("/proc/self/status").read_text(encoding="ascii"))
    assert found is not None, "Linux gives it"
    return int(found[1]) * 1024


def measure_steps(model: CausalModel, found: Found, arguments: argparse.Namespace) -> None:
    gauge = RateGauge(model.device, torch.float32, found.step_bytes)
    cache = fill_cache(model, arguments.cached, arguments.rows[-1])
    found.rounds = {rows: [] for rows in arguments.rows}
    for _ in progress(range(arguments.rounds), "measuring", unit="round"):
        for rows, rounds in found.rounds.items():
            before = gauge.read_bytes_per_s()
            seconds = median(time_forwards(model, cache, rows, TIMED))
            after = gauge.read_bytes_per_s()
            rounds.append(Round(seconds, found.step_bytes * (1 / before + 1 / after) / 2))
    found.parts = [measure_parts("native", model, model, cache, make_tree(model, rows)) for rows in arguments.rows]


def find_llama_bench() -> Path:
    """llama.cpp's own benchmark, which may have to be built first. Raises SystemExit."""
    try:
        return build_programs(os.cpu_count() or 1) / "llama-bench"
    except Unavailable as error:
        raise SystemExit(f"--llama-bench: {error}") from None


def time_llama(program: Path, file: Path, threads: int) -> float | None:
    """Seconds of a token that llama.cpp decodes; None, with the reason printed, if it fails."""
    options = ["-p", "0", "-n", str(BENCH_TOKENS), "-t", str(threads), "-r", "1", "-o", "json"]
    try:
        printed, _ = run_program([str(program), "-m", str(file), *options], program.name)
        return bench_seconds(printed, program.name) / BENCH_TOKENS
    except Unavailable as error:
        print(f"llama.cpp is left out: {error}")
        return None


def describe(found: Found, cached: int) -> str:
    loads = markdown_table(
        ["loading", "seconds", "memory grew by, at most", "of the file", "at the end", "of the file"],
        [
            (name, f"{one.seconds:.1f}", f"{one.peak / 1e9:.2f} GB", f"{one.peak / found.file_bytes:.2f}",
             f"{one.kept / 1e9:.2f} GB", f"{one.kept / found.file_bytes:.2f}")
            for name, one in zip(("first", "again"), found.loadings, strict=True)
        ],
    )  # fmt: skip
    steps = markdown_table(
        ["rows", "ms of a step", "the floor", "of the floor", "from, to", "products", "head", "attention", "rest"],
        [
            (part.rows, f"{1000 * median(one.step_s for one in rounds):.1f}",
             f"{1000 * median(one.floor_s for one in rounds):.1f}", f"{median(one.ratio for one in rounds):.2f}",
             f"{min(one.ratio for one in rounds):.2f} to {max(one.ratio for one in rounds):.2f}",
             *(f"{one / part.whole:.0%}" for one in (part.products, part.head, part.attention, part.rest)))
            for part, rounds in zip(found.parts, found.rounds.values(), strict=True)
        ],
    )  # fmt: skip
    rates = [found.step_bytes / one.floor_s / 1e9 for rounds in found.rounds.values() for one in rounds]
    floor = (
        f"The file has {found.file_bytes / 1e9:.2f} GB, of which a step reads {found.step_bytes / 1e9:.2f}. As many "
        f"bytes of a buffer were read at {min(rates):.1f} to {max(rates):.1f} GB/s. Steps on {cached} cached tokens, "
        "with logits for all rows; medians over the rounds, of times and of their ratios, and shares of the time."
    )
    llama = "" if found.llama_s is None else f"\n\nllama.cpp decodes a token in {1000 * found.llama_s:.1f} ms."
    return f"{loads}\n\n{floor}\n\n{steps}{llama}"


if __name__ == "__main__":
    main()
