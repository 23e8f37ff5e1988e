"""Measures the memory that many streams take at once, beside the bound that is stated for it.

    python -m benchmarks.steps.stream_memory --streams 64 --tokens 1000

All streams decode at the same time, and each has --tokens tokens at its end. Their prompts begin alike, so that they
get copies of the keys and values of a request before them, and none has ended before the last one begins. They are
served twice: with a bound on the pages of keys and values that all of them fit into, and with --share of it, where some
wait for others. For each the table has the bound, the most pages in use after a step, the bytes of keys and values, and
by how much the process grew, at most, while it served. Beyond keys and values, that is a cache that is moved as it
grows, the activations of a step, its logits, the rows of text, and what the drafts have learnt. The second time,
memory is used again that was freed the first time. Both must yield the same tokens. Linux only.
"""

from __future__ import annotations

import argparse
import os
import re
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.shared.inputs import load_engine, read_prompts
from benchmarks.shared.options import add_output, add_threads, make_parser, parse
from benchmarks.shared.report import markdown_table, publish
from launch.config import resources
from lp import Auto, Engine, Sampling, Stopping
from lp.kv_cache.cache import PAGE, pages_of
from lp.model.checkpoint import DTYPES
from lp.request import Request
from lp.scheduling.kv_budget import KVBudget
from lp.scheduling.settings import PrefixReuse, SchedulerSettings

COLUMNS = (
    "bound", "pages", "most in use", "keys and values", "process grew by", "preempted", "most at once",
)  # fmt: skip


class Peaks(NamedTuple):
    """The most that serving some requests took at any time.

    bound: pages that keys and values may take. page_bytes: of one. pages, cache_bytes: that they took after a step.
    grown: bytes by which the process grew. preemptions: how often a request lost its room. at_once: the most requests
    that had room. checksum: of all tokens.
    """

    bound: int
    page_bytes: int
    pages: int
    cache_bytes: int
    grown: int
    preemptions: int
    at_once: int
    checksum: int


def main() -> None:
    arguments = parse_arguments()
    try:
        path = resources.resolve(arguments.model)
    except ValueError as error:
        raise SystemExit(str(error)) from None
    engine = load_engine(path, arguments.dtype, "cpu")
    bound = arguments.streams * pages_of(arguments.tokens + Auto().most_rows())
    bounds = [bound, int(arguments.share * bound)]
    found = [measure(engine, num_pages, arguments) for num_pages in bounds]
    if len({one.checksum for one in found}) > 1:
        raise SystemExit("the tokens depend on the bound")
    name = os.path.basename(os.path.normpath(path)).removesuffix(".gguf")
    publish(
        arguments.output,
        f"stream_memory-{name}-{arguments.dtype}",
        f"Memory of {arguments.streams} streams of {arguments.tokens:,} tokens: {name}, {arguments.dtype}",
        markdown_table(COLUMNS, [row_of(one) for one in found]),
        {"streams": arguments.streams, "tokens": arguments.tokens, "found": [one._asdict() for one in found]},
    )


def parse_arguments() -> argparse.Namespace:
    parser = make_parser(__doc__)
    parser.add_argument("--model", default=resources.SMOLLM2, help="checkpoint folder (default %(default)s)")
    parser.add_argument("--dtype", default="bfloat16", choices=DTYPES, help="default %(default)s")
    parser.add_argument("--streams", type=int, default=64, help="requests at once (default %(default)s)")
    parser.add_argument("--tokens", type=int, default=1000, help="of each at its end (default %(default)s)")
    parser.add_argument(
        "--max-new-tokens", type=int, default=40, help="of these, how many are generated (default %(default)s)"
    )
    parser.add_argument("--share", type=float, default=0.5, help="of the bound, the second time (default %(default)s)")
    add_threads(parser)
    add_output(parser)
    arguments = parse(parser)
    if arguments.streams < 1 or arguments.tokens <= arguments.max_new_tokens:
        parser.error("--streams must be at least 1, and --tokens more than --max-new-tokens")
    return arguments


def measure(engine: Engine, num_pages: int, arguments: argparse.Namespace) -> Peaks:
    """Serves all streams within a bound, which must not be more than that of the engine before."""
    memory = engine.checkpoint.model.memory
    memory.limit(num_pages)
    if memory.num_pages < num_pages:
        raise SystemExit(f"there is memory for {memory.num_pages} pages, and the streams need {num_pages}")
    reuse = SchedulerSettings(prefix_reuse=PrefixReuse.all)
    bounded = Engine(
        engine.checkpoint, step_times=engine.history.step_times, budget=KVBudget(num_pages), scheduler=reuse
    )
    return serve(bounded, make_requests(bounded, arguments.streams, arguments.tokens, arguments.max_new_tokens))


def make_requests(engine: Engine, streams: int, num_tokens: int, max_new_tokens: int) -> list[Request]:
    """One short request, and then the streams: greedy, and alike but for the last token of their prompts."""
    text = [token for prompt in read_prompts(None, 100) for token in engine.request_builder.encode(prompt)]
    length, sampling = num_tokens - max_new_tokens, Sampling(temperature=0.0, seed=0)
    beginning = [text[place % len(text)] for place in range(length - 1)]
    prompts = [beginning, *([*beginning, text[stream]] for stream in range(streams))]
    return [
        engine.request_builder.build(
            prompt, Auto(), sampling, Stopping(max_new_tokens if number else 1, ignore_eos=True), str(number)
        )
        for number, prompt in enumerate(prompts)
    ]


def serve(engine: Engine, requests: Sequence[Request]) -> Peaks:
    """Runs the first request and then the others together, and watches the memory after every step."""
    memory, tokens = engine.checkpoint.model.memory, {request.id: list[int]() for request in requests}
    pages = cache_bytes = preemptions = at_once = 0
    before = start_watching()
    waiting = [list(requests[1:]), [requests[0]]]
    while waiting or not engine.is_idle:
        for request in waiting.pop() if engine.is_idle else ():
            if refusal := engine.add_request(request):
                raise SystemExit(refusal.text)
        for output in engine.step():
            tokens[output.request_id] += output.tokens
            preemptions += output.engine.preemptions if output.engine else 0
        pages = max(pages, memory.num_used)
        cache_bytes = max(cache_bytes, engine.runner.cache_bytes)
        at_once = max(at_once, len(engine.scheduler.admitted()))
    grown, page_bytes = peak() - before, PAGE * engine.checkpoint.model.numbers_per_token * _itemsize(engine)
    checksum = zlib.crc32(repr(sorted(tokens.items())).encode())
    return Peaks(memory.num_pages, page_bytes, pages, cache_bytes, grown, preemptions, at_once, checksum)


def _itemsize(engine: Engine) -> int:
    return engine.checkpoint.model.dtype.itemsize


def start_watching() -> int:
    """Has the kernel forget the peak of this process; returns the bytes that it has in memory."""
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    return peak()


def peak() -> int:
    """The most bytes that this process has had in memory since `start_watching`."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text(encoding="ascii"))
    assert found is not None, "Linux tells the peak"
    return int(found[1]) * 1024


def row_of(found: Peaks) -> list[str]:
    bound = found.bound * found.page_bytes
    return [
        f"{bound / 1e9:.2f} GB", f"{found.bound}", f"{found.pages}", f"{found.cache_bytes / 1e9:.2f} GB",
        f"{found.grown / 1e9:.2f} GB", f"{found.preemptions}", f"{found.at_once}",
    ]  # fmt: skip


if __name__ == "__main__":
    main()
