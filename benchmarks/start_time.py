"""Measures the time from a command until a server is ready, or until a text has its first token.

    python -m benchmarks.start_time --model smollm2 --dtype bfloat16 --rounds 5
    python -m benchmarks.start_time --model gemma3-270m --program generate

Warm: everything that is kept between runs is there: compiled code, step times, Python's bytecode. Cold: the folder
that LOOKAHEAD_CACHE names is empty, but for packages that would be downloaded; a GGUF file is unpacked, the forward
compiled and step times measured. The first warm start is not counted. Ready is the first answer of 200 from GET /ready,
or, of --program generate, the first character that it prints. The stages are the lines of the log, with the median of
the seconds after which they came. Writes tables to --output.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from threading import Thread
from typing import IO

import httpx
import psutil

from benchmarks.shared.options import add_output, add_threads, make_parser
from benchmarks.shared.report import markdown_table, progress, publish
from lp.platform import disk_cache

CHECKOUT = Path(__file__).resolve().parents[1]
MOST_S = 600.0
# Seconds between two looks whether the server is ready.
LOOK_S = 0.02
# By the line of the log that ends it, a stage of the start.
STAGES = {
    "weights read": re.compile("^keys and values: "),
    "forward compiled": re.compile("^the forward is compiled"),
    "loaded": re.compile("^loaded "),
    "listening": re.compile("^serving .* on (http://\\S+)$"),
}


@dataclass
class Start:
    """One start of a program. ready_s: from the command until it is ready. cpu_s: processor time until then. stages:
    seconds from the command to the end of each stage that the log showed.
    """

    ready_s: float
    cpu_s: float
    stages: dict[str, float] = field(default_factory=dict)


def main() -> None:
    arguments = parse_arguments()
    start, own = PROGRAMS[arguments.program]
    command = [sys.executable, str(CHECKOUT / "launch" / f"{arguments.program}.py"), f"model={arguments.model}", *own]
    command += [f"model.dtype={arguments.dtype}", f"parallel.threads={arguments.threads}", *arguments.settings]
    start(command, environment())
    warm = [start(command, environment()) for _ in progress(range(arguments.rounds), "warm", unit="start")]
    cold = [start_cold(start, command) for _ in progress(range(arguments.cold_rounds), "cold", unit="start")]
    measured = {"warm": warm, "cold": cold}
    of_server = arguments.program == "serve"
    publish(
        arguments.output,
        f"{'start_time' if of_server else 'first_token'}-{arguments.model}",
        f"From the command to {'serving' if of_server else 'the first token'}: {arguments.model}",
        describe(measured),
        {name: [asdict(one) for one in starts] for name, starts in measured.items()},
    )


def parse_arguments() -> argparse.Namespace:
    parser = make_parser(__doc__)
    parser.add_argument("--model", default="smollm2", help="a model of conf/model (default %(default)s)")
    parser.add_argument("--program", default="serve", choices=PROGRAMS, help="default %(default)s")
    parser.add_argument("--dtype", default="bfloat16", help="its number format (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="warm starts (default %(default)s)")
    parser.add_argument("--cold-rounds", type=int, default=3, help="cold starts (default %(default)s)")
    add_threads(parser)
    add_output(parser)
    parser.add_argument("settings", nargs="*", metavar="KEY=VALUE", help="settings of the program")
    arguments = parser.parse_args()
    if arguments.rounds < 1 or arguments.cold_rounds < 0:
        parser.error("--rounds must be at least 1, --cold-rounds at least 0")
    return arguments


def environment(**more: str) -> dict[str, str]:
    """This process's environment, in which Python keeps its bytecode and looks nothing up on the network."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, "HF_HUB_OFFLINE": "1", **more}


def start_cold(start: Callable[[Sequence[str], Mapping[str, str]], Start], command: Sequence[str]) -> Start:
    with tempfile.TemporaryDirectory(prefix="lookahead-parallel-") as cache:
        if packages := disk_cache.folder("packages"):
            Path(cache, "packages").symlink_to(packages)
        return start(command, environment(**{disk_cache.VARIABLE: cache}))


def start_server(command: Sequence[str], variables: Mapping[str, str]) -> Start:
    """Starts a server, waits until it is ready and ends it. Raises SystemExit with its log if it does not get ready."""
    client = httpx.Client(timeout=5)  # making one takes tenths of a second
    began = time.perf_counter()
    with client, running(command, variables) as process:
        assert process.stderr is not None
        stages, lines = dict[str, float](), list[str]()
        address = ""
        for line in process.stderr:
            lines.append(line)
            address = note_stage(line, stages, began)
            if address:
                break
        Thread(target=_read_on, args=(process.stderr,), daemon=True).start()
        while not (address and is_ready(client, address)):
            if process.poll() is not None or not address or time.perf_counter() - began > MOST_S:
                raise SystemExit(f"the server did not get ready:\n{''.join(lines)}")
            time.sleep(LOOK_S)
        ready_s = time.perf_counter() - began
        return Start(ready_s, cpu_seconds(process.pid), stages)


def start_text(command: Sequence[str], variables: Mapping[str, str]) -> Start:
    """Starts a program that prints a text, waits for its first character and ends it. Raises SystemExit with its log if
    it prints nothing.
    """
    stages, lines, began = dict[str, float](), list[str](), time.perf_counter()

    def read_log(stream: IO[str]) -> None:
        for line in stream:
            lines.append(line)
            note_stage(line, stages, began)

    with running(command, variables, subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        log = Thread(target=read_log, args=(process.stderr,), daemon=True)
        log.start()
        first = process.stdout.read(1)
        ready_s, cpu_s = time.perf_counter() - began, cpu_seconds(process.pid)
    log.join()
    if not first:
        raise SystemExit(f"the program printed nothing:\n{''.join(lines)}")
    return Start(ready_s, cpu_s, stages)


# By its name in launch/, how a program is started, and its own settings.
PROGRAMS = {
    "serve": (start_server, ["server.port=0"]),
    "generate": (start_text, ["prompt=The capital of France is", "max_new_tokens=4", "show_prompt=false"]),
}


def note_stage(line: str, stages: dict[str, float], began: float) -> str:
    """Notes the time of the stages that a line of the log ends; returns the address that it names, if any."""
    address = ""
    for name, pattern in STAGES.items():
        if found := pattern.search(line):
            stages[name] = time.perf_counter() - began
            address = found[1] if found.groups() else ""
    return address


@contextmanager
def running(
    command: Sequence[str], variables: Mapping[str, str], stdout: int | None = None
) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(command, stdout=stdout, stderr=subprocess.PIPE, text=True, env=dict(variables))
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(30)
        process.kill()
        process.wait()


def is_ready(client: httpx.Client, address: str) -> bool:
    try:
        return client.get(f"{address}/ready").status_code == 200
    except httpx.TransportError:
        return False


def cpu_seconds(pid: int) -> float:
    """The processor time of a process and of those that it has waited for, such as compilers."""
    times = psutil.Process(pid).cpu_times()
    return times.user + times.system + times.children_user + times.children_system


def _read_on(stream: IO[str]) -> None:
    """Empties a pipe, so that the server never waits for room in it."""
    for _ in stream:
        pass


def describe(measured: Mapping[str, Sequence[Start]]) -> str:
    rows = []
    for name, starts in measured.items():
        if not starts:
            continue
        seconds = sorted(one.ready_s for one in starts)
        stages = [_median([one.stages[stage] for one in starts if stage in one.stages]) for stage in STAGES]
        rows.append(
            (name, len(starts), *stages, _median(seconds), f"{seconds[0]:.1f} to {seconds[-1]:.1f}",
             _median([one.cpu_s for one in starts]))
        )  # fmt: skip
    return "Medians, in seconds from the command.\n\n" + markdown_table(
        ["", "starts", *STAGES, "ready", "from, to", "processor time"], rows
    )


def _median(seconds: Sequence[float]) -> str:
    return f"{median(seconds):.1f}" if seconds else ""


if __name__ == "__main__":
    main()
