"""The options of the load benchmark, and what follows from them."""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks.load.arrivals import SECONDS, Arrival, read_trace
from benchmarks.load.scenarios import Plan
from benchmarks.load.systems.dialects import Api
from benchmarks.load.systems.specs import HELP, read_systems
from benchmarks.shared.options import add_output, add_threads, ascending_numbers, make_parser, parse, triple
from launch.config.resources import SMOLLM2
from lp.model.checkpoint import DTYPES

MODELS = {"demo": "demo/python-11m", "smollm2": SMOLLM2}
DEFAULT_STREAMS = (1, 2, 4, 8, 16)


def parse_arguments(description: str | None) -> argparse.Namespace:
    """The options, with `specs` (the systems) and `plan` (the scenarios). A wrong one ends the program with a line."""
    parser = make_parser(description)
    _add_systems(parser)
    _add_scenarios(parser)
    _add_requests(parser)
    add_threads(parser)
    add_output(parser)
    arguments = parse(parser)
    _check(parser, arguments)
    try:
        arguments.specs = read_systems(arguments.system, arguments.url)
        arguments.plan = make_plan(arguments)
    except ValueError as error:
        parser.error(str(error))
    arguments.model = MODELS.get(arguments.model, arguments.model)
    return arguments


def _add_systems(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("systems")
    group.add_argument(
        "--model", default="demo", help="demo, smollm2, a checkpoint folder or a GGUF file (default %(default)s)"
    )
    group.add_argument("--dtype", default="float32", choices=DTYPES, help="of all systems (default %(default)s)")
    group.add_argument("--ranks", type=int, default=1, help="ranks of each of our own servers (default %(default)s)")
    group.add_argument("--system", action="append", default=[], metavar="NAME=WHAT", help=HELP.replace("%", "%%"))
    group.add_argument("--url", action="append", default=[], help="a running server to measure, repeatable")


def _add_scenarios(parser: argparse.ArgumentParser) -> None:
    streams = ",".join(map(str, DEFAULT_STREAMS))
    group = parser.add_argument_group("scenarios", f"--streams {streams} if none is chosen")
    group.add_argument("--streams", type=ascending_numbers, help="closed loops with so many clients, like 1,2,4")
    group.add_argument("--rate", type=rates, help="open loops with so many requests a second, like 0.5,1,2")
    group.add_argument("--trace", type=Path, metavar="FILE", help="JSON lines {timestamp, input_length, output_length}")
    group.add_argument("--trace-unit", default="ms", choices=SECONDS, help="of its timestamps (default %(default)s)")
    group.add_argument("--trace-speed", type=float, default=1.0, help="replays it so many times faster (default 1)")
    group.add_argument("--trace-scale", type=float, default=1.0, help="factor of its lengths (default 1)")
    group.add_argument("--trace-limit", type=int, default=100, help="first requests replayed (default %(default)s)")
    group.add_argument(
        "--burst", type=triple, nargs="?", const=(1, 16, 1), metavar="A,B,C", help="A streams, then B, then C (1,16,1)"
    )
    group.add_argument(
        "--pause",
        type=int,
        nargs="?",
        const=1500,
        metavar="TOKENS",
        help="a prompt of so many tokens (1500) beside a stream",
    )


def _add_requests(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("requests")
    group.add_argument("--prompts", type=Path, metavar="FOLDER", help="folder with the prompts (default: our own)")
    group.add_argument(
        "--longest-prompt", type=int, default=512, help="tokens; longer prompts are left out (default %(default)s)"
    )
    group.add_argument("--api", default="completions", choices=list(Api), help="route (default %(default)s)")
    group.add_argument(
        "--requests", type=int, default=16, help="of a loop in a round, at least two a stream (default %(default)s)"
    )
    group.add_argument("--max-new-tokens", type=int, default=64, help="of each answer, exactly (default %(default)s)")
    group.add_argument("--rounds", type=int, default=3, help="default %(default)s")
    group.add_argument("--warm-up", type=int, default=4, help="requests before the first round (default %(default)s)")
    group.add_argument("--seed", type=int, default=0, help="of prompts and arrivals (default %(default)s)")
    group.add_argument("--slo-ttft-ms", type=float, default=1000.0, help="for goodput (default %(default)s)")
    group.add_argument("--slo-tpot-ms", type=float, default=100.0, help="for goodput (default %(default)s)")
    group.add_argument("--timeout", type=float, default=300.0, help="seconds without a byte (default %(default)s)")
    group.add_argument("--name", help="of the result files, after load-MODEL-DTYPE- (default: the scenarios)")


def _check(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> None:
    for name in ("ranks", "longest_prompt", "requests", "rounds", "trace_limit"):
        if getattr(arguments, name) < 1:
            parser.error(f"--{name.replace('_', '-')} must be at least 1, not {getattr(arguments, name)}")
    for name in ("slo_ttft_ms", "slo_tpot_ms", "timeout", "trace_speed", "trace_scale"):
        if not getattr(arguments, name) > 0:
            parser.error(f"--{name.replace('_', '-')} must be above 0, not {getattr(arguments, name):g}")
    if arguments.max_new_tokens < 2:
        parser.error("--max-new-tokens must be at least 2: the time per token is that of the tokens after the first")
    if arguments.warm_up < 0 or (arguments.pause is not None and arguments.pause < 1):
        parser.error("--warm-up must not be negative, and --pause at least 1")
    if arguments.burst and min(arguments.burst) < 1:
        parser.error("--burst needs at least one stream in each phase, like 1,16,1")
    if arguments.api == Api.chat and (arguments.trace or arguments.pause):
        parser.error("--trace and --pause need prompts of a given length: use --api completions")


def make_plan(arguments: argparse.Namespace) -> Plan:
    """The scenarios. Raises ValueError if the trace cannot be used."""
    trace: list[Arrival] = []
    if arguments.trace:
        trace = read_trace(arguments.trace, arguments.trace_unit, arguments.trace_speed, arguments.trace_scale)
    chosen = arguments.streams or arguments.rate or trace or arguments.burst or arguments.pause
    return Plan(
        arguments.streams or (() if chosen else DEFAULT_STREAMS),
        arguments.rate or (),
        trace[: arguments.trace_limit],
        arguments.burst,
        arguments.pause,
        arguments.requests,
        arguments.max_new_tokens,
    )


def rates(text: str) -> list[float]:
    """Reads numbers above 0 with commas between them: the type of an option."""
    try:
        found = [float(part) for part in text.split(",")]
    except ValueError:
        found = []
    if not found or not all(0 < rate < float("inf") for rate in found):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of numbers above 0, like 0.5,1,2")
    return sorted(set(found))
