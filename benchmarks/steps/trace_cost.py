"""Measures what traces of steps cost: host time in a step, time to write them, and bytes of a chunk.

    python -m benchmarks.steps.trace_cost
    python -m benchmarks.steps.trace_cost --model PATH --max-new-tokens 256

Every method decodes the same prompt, alone, with traces. What recording adds is timed around each of its calls, in the
steps themselves, once with caches as cold as a forward leaves them, and repeated with warm ones: figures of the batch,
the tree and its sources before the answers are learnt from, and the trace as plain data. The last of these comes once
the next step has been started, so a GPU computes meanwhile; on a CPU it adds to the step like the others. Then each
trace is cut and written as JSON, as the server does it for a chunk, apart from the steps. For a request without a
trace, the comparisons that find that out are timed alone. Prints a table and writes it to --output.
"""

from __future__ import annotations

import argparse
import json
import timeit
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median, quantiles
from time import perf_counter_ns
from types import SimpleNamespace
from typing import Any

from benchmarks.shared.inputs import read_prompts
from benchmarks.shared.options import add_output, add_threads, make_parser, parse
from benchmarks.shared.report import markdown_table, progress, publish
from launch.server.openai_replies import MOST_TRACE_BYTES
from lp import Auto, Autoregressive, Engine, Jacobi, Lookahead, PromptLookup, StepTrace
from lp.request import DecodingMethod
from lp.scheduling.step_clock import StepClock
from lp.trace import RecordedStep, TraceRecorder

DEMO = Path(__file__).parents[2] / "demo" / "python-11m"
METHODS: dict[str, DecodingMethod] = {
    "autoregressive": Autoregressive(),
    "jacobi (8)": Jacobi(),
    "prompt_lookup (5, 7)": PromptLookup(),
    "lookahead (7, 5, 7)": Lookahead(),
    "lookahead (15, 5, 15)": Lookahead(15, 5, 15),
    "auto": Auto(),
    "auto, 128 rows": Auto(rows=128),
}
REPETITIONS = 5
# What a step with a trace calls beyond one without, before the next step starts and after that.
BEFORE = [(StepClock, "record"), (TraceRecorder, "note_tree"), (TraceRecorder, "committed")]
AFTER = [(RecordedStep, "trace")]


@dataclass(frozen=True)
class TraceCost:
    """What the traces of one text cost.

    rows: median of a tree. before_us, after_us, warm_us, write_us: median and 90th percentile of microseconds in a
    step: before the next one starts and after that with cold caches, both with warm ones, and to write a chunk's.
    most_bytes: of a trace in a chunk. cut: share of the traces that were cut.
    """

    method: str
    steps: int
    rows: float
    before_us: tuple[float, float]
    after_us: tuple[float, float]
    warm_us: tuple[float, float]
    write_us: tuple[float, float]
    most_bytes: int
    cut: float


def main() -> None:
    arguments = parse_arguments()
    engine = Engine.from_pretrained(str(arguments.model), step_times="off")
    prompt = engine.request_builder.encode(read_prompts(None, 1)[0])
    costs = [
        measure(engine, name, prompt, arguments.max_new_tokens) for name in progress(list(METHODS), "methods", "method")
    ]
    off = {number: time_off(number) for number in (1, 64)}
    data = {"model": engine.checkpoint.name, "costs": [asdict(cost) for cost in costs], "off_us": off}
    publish(arguments.output, "trace_cost", "The cost of traces", describe(costs, off, engine.checkpoint.name), data)


def parse_arguments() -> argparse.Namespace:
    parser = make_parser(__doc__)
    parser.add_argument("--model", type=Path, default=DEMO, help="a checkpoint's folder (default the demo model)")
    parser.add_argument("--max-new-tokens", type=int, default=192, help="of each text (default 192)")
    add_threads(parser)
    add_output(parser)
    arguments = parse(parser)
    if arguments.max_new_tokens < 4:
        parser.error(f"--max-new-tokens must be at least 4, not {arguments.max_new_tokens}")
    return arguments


def measure(engine: Engine, name: str, prompt: list[int], max_new_tokens: int) -> TraceCost:
    """Decodes a text with traces, of which the first step counts as warm-up."""
    spent: dict[str, list[tuple[int, int]]] = defaultdict(list)
    with timed(spent):
        completion = engine.generate(
            prompt, max_new_tokens=max_new_tokens, decode=METHODS[name], temperature=0.0, trace=True
        )
    steps = [*zip(*(spent[_name(call)][1:] for call in (*BEFORE, *AFTER)), strict=True)]
    written = [write(trace) for trace in completion.trace]
    return TraceCost(
        name,
        len(completion.trace),
        median(len(trace.tokens) for trace in completion.trace),
        middle_and_high([sum(cold for cold, _ in calls[: len(BEFORE)]) / 1e3 for calls in steps]),
        middle_and_high([sum(cold for cold, _ in calls[len(BEFORE) :]) / 1e3 for calls in steps]),
        middle_and_high([sum(warm for _, warm in calls) / 1e3 for calls in steps]),
        middle_and_high([microseconds for microseconds, _ in written]),
        max(num_bytes for _, num_bytes in written),
        sum(len(trace.tokens) > len(trace.within(MOST_TRACE_BYTES).tokens) for trace in completion.trace)
        / len(completion.trace),
    )


@contextmanager
def timed(spent: dict[str, list[tuple[int, int]]]) -> Iterator[None]:
    """Adds the nanoseconds of each call of what records to `spent`, by name: of the first, and of the quickest
    repetition. Nothing of it changes by being repeated.
    """

    def wrap(work: Callable[..., Any], found: list[tuple[int, int]]) -> Callable[..., Any]:
        def called(*arguments: Any) -> Any:
            taken, result = [], None
            for _ in range(REPETITIONS):
                begin = perf_counter_ns()
                result = work(*arguments)
                taken.append(perf_counter_ns() - begin)
            found.append((taken[0], min(taken)))
            return result

        return called

    untimed = [(kind, name, getattr(kind, name)) for kind, name in (*BEFORE, *AFTER)]
    for kind, name, work in untimed:
        setattr(kind, name, wrap(work, spent[_name((kind, name))]))
    try:
        yield
    finally:
        for kind, name, work in untimed:
            setattr(kind, name, work)


def _name(call: tuple[type, str]) -> str:
    return f"{call[0].__name__}.{call[1]}"


def write(trace: StepTrace) -> tuple[float, int]:
    """Microseconds to write a chunk's trace, and its bytes."""
    begin = perf_counter_ns()
    text = json.dumps(trace.within(MOST_TRACE_BYTES).to_dict(), separators=(",", ":"))
    return (perf_counter_ns() - begin) / 1e3, len(text)


def middle_and_high(values: list[float]) -> tuple[float, float]:
    """The median and the 90th percentile."""
    return round(median(values), 1), round(quantiles(values, n=10)[-1] if len(values) > 1 else values[0], 1)


def time_off(num_sequences: int) -> float:
    """Microseconds that a step of so many requests without traces pays: the comparisons of lp/ that find none."""
    states = [SimpleNamespace(recorder=None) for _ in range(num_sequences)]

    def compare() -> None:
        for state in states:
            if state.recorder:  # in Scheduler.commit, and twice in RequestState.commit
                raise AssertionError
            if state.recorder:
                raise AssertionError
            if state.recorder:
                raise AssertionError

    number = 2000
    return round(min(timeit.repeat(compare, number=number, repeat=20)) / number * 1e6, 2)


def describe(costs: list[TraceCost], off: dict[int, float], model: str) -> str:
    """A table with a line for each method."""
    rows = [
        [
            cost.method,
            cost.steps,
            f"{cost.rows:g}",
            f"{cost.before_us[0]:.0f} ({cost.before_us[1]:.0f})",
            f"{cost.after_us[0]:.0f} ({cost.after_us[1]:.0f})",
            f"{cost.warm_us[0]:.0f} ({cost.warm_us[1]:.0f})",
            f"{cost.write_us[0]:.0f} ({cost.write_us[1]:.0f})",
            cost.most_bytes,
            f"{cost.cut:.0%}",
        ]
        for cost in costs
    ]
    columns = [
        "",
        "steps",
        "rows",
        "before the next step, us",
        "after, us",
        "both, warm",
        "writing, us",
        "bytes",
        "cut",
    ]
    without = ", ".join(f"{us:.2f} us in a step of {number}" for number, us in off.items())
    return (
        f"{model}, one text of each method; median and, in brackets, 90th percentile. `cut`: traces of which nodes "
        f"were left out to stay under {MOST_TRACE_BYTES} bytes.\n\n{markdown_table(columns, rows)}\n\n"
        f"A step of requests without traces pays {without}."
    )


if __name__ == "__main__":
    main()
