"""Runs what the first half hour with a GPU should show: tests, step times, attention, texts.

    python -m benchmarks.gpu --stage right --minutes 8
    python -m benchmarks.gpu --stage speed --minutes 8
    python -m benchmarks.gpu --dry-run

It is for a machine with one GPU, without a network, on which a run may take ten minutes. It needs torch, Triton,
transformers, safetensors, numpy and pytest. Every item runs in a process of its own with a limit; one that hangs or
crashes does not stop the others, and none is begun when the minutes are used up. Results are written anew after each
item, two files for each stage: gpu-STAGE.md and gpu-STAGE.json. A second run with the same options does what is missing
or has failed; --fresh begins anew. The table is printed last. Exit status 1: something failed, or is left to do.

  right      float32 text is that of generate, graphs give what eager does, two ranks on one GPU, memory errors
  speed      the time of a step for 7B and 8B shapes with random weights, at 1k and 16k cached tokens, and of 8B with
             weights of 4 bits: bandwidth, floor, launches, seconds of capture, memory; each product by several kernels;
             1 to 64 sequences
  attention  prompts of 2,048 rows after 0, 2k and 16k tokens by our kernel and each FlashAttention; kinds of attention
             at 1k, 4k and 16k cached tokens; the cost of sampling
  texts      tokens per step, and texts in half precision

Run `right` first. --dry-run runs tiny versions of all stages on the CPU, with the tests on an emulated GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Mapping
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.gpu.plan import STAGES, items_of, read_plan
from benchmarks.gpu.process import ItemFailed, run_item, run_limited
from benchmarks.gpu.report import ItemState, describe_missing, document, table, write
from benchmarks.real.tasks import Figures, MeasurementStore, Task, measure_all

# Seconds that an item must have at least, so that it is worth beginning.
LEAST_S = 10.0
PROBE_S = 120.0
# How an item stands whose module is not installed.
LEFT_OUT = "left out"


def main() -> None:
    arguments = parse_arguments()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # items are stopped with this program
    deadline = time.monotonic() + 60 * arguments.minutes
    facts = probe()
    if not facts.get("gpus") and not arguments.dry_run:
        raise SystemExit(
            f"there is no GPU that torch can use here: {facts.get('why_no_gpu', 'it finds none')}. Run this on a "
            "machine with one, or try it out with --dry-run"
        )
    for line in describe_missing(facts.get("missing", {})):
        print(line, file=sys.stderr)
    try:
        stages = [Stage(name, arguments, facts, deadline) for name in arguments.stage or STAGES]
        codes = [stage.run() for stage in stages]
    except ValueError as error:
        raise SystemExit(str(error)) from None
    print("\n\n".join(f"{stage.stage}: {STAGES[stage.stage]}\n\n{table(stage.states)}" for stage in stages))
    if any(codes):
        raise SystemExit(max(codes))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--stage", action="append", choices=list(STAGES), help="one of them (default: all)")
    parser.add_argument("--minutes", type=float, default=8.0, help="time for all of it (default %(default).0f)")
    parser.add_argument(
        "--out",
        type=Path,
        default=Path(os.environ.get("OUT") or "benchmarks/results"),
        help="folder for the results (default: $OUT if that is set, else benchmarks/results)",
    )
    parser.add_argument("--model", default="demo/python-11m", help="checkpoint of `texts` (default %(default)s)")
    parser.add_argument("--fresh", action="store_true", help="forget what was found before")
    parser.add_argument("--dry-run", action="store_true", help="tiny versions of all items, without a GPU")
    parser.add_argument("--plan", type=Path, metavar="FILE", help="items of your own, as JSON, in place of the stage's")
    arguments = parser.parse_args()
    if arguments.minutes <= 0:
        parser.error(f"--minutes {arguments.minutes:g} must be more than 0")
    if arguments.plan and len(arguments.stage or []) != 1:
        parser.error("--plan needs one --stage, whose items it replaces")
    try:
        arguments.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        parser.error(f"--out {arguments.out} is not a folder that can be made: {error.strerror}")
    return arguments


def probe() -> dict[str, Any]:
    """What this machine has. Ends the program if even that cannot be found out."""
    print("looking at the machine", file=sys.stderr, flush=True)
    code, output = run_limited([sys.executable, "-m", "benchmarks.gpu.probe"], PROBE_S, whole=True)
    line = next((line for line in reversed(output.splitlines()) if line.startswith("{")), None)
    if code or line is None:
        raise SystemExit(f"the machine cannot be looked at (exit code {code}):\n{output}")
    return json.loads(line)


class Stage:
    """One stage: its items, how each stands, and its two files."""

    def __init__(self, stage: str, arguments: argparse.Namespace, facts: Mapping[str, Any], deadline: float):
        """deadline: by time.monotonic(); no item is begun later. Raises ValueError for files that cannot be used."""
        self.stage = stage
        self.facts = facts
        self.deadline = deadline
        self.name = f"gpu-{stage}{'-dry-run' if arguments.dry_run else ''}"
        self.folder: Path = arguments.out
        machine = facts["gpus"][0]["name"] if facts.get("gpus") else "no GPU"
        self.store = MeasurementStore(self.folder / f"{self.name}.json", arguments.fresh, machine)
        items = read_plan(arguments.plan) if arguments.plan else items_of(stage, arguments.model, arguments.dry_run)
        self.states = [ItemState(item) for item in items]
        for one in self.states:
            if one.item.needs and find_spec(one.item.needs) is None:
                one.state, one.summary = LEFT_OUT, f"needs {one.item.needs}, which is not installed"
        present = [one for one in self.states if one.state != LEFT_OUT]
        self.tasks = [
            Task(self.name, one.item.name, {"command": list(one.item.command)}, partial(self.measure, one))
            for one in present
        ]
        for one, task in zip(present, self.tasks, strict=True):
            if (kept := self.store.figures(task)) is not None:
                show(one, kept, self.store.entries[task.key]["seconds"])

    def run(self) -> int:
        """Runs what is missing. Returns the exit code; 130 if the user interrupted it."""
        self.write()
        try:
            measure_all(self.tasks, self.store, self.begin)
        except KeyboardInterrupt:
            print("interrupted; the same command does what is left", file=sys.stderr)
            self.write()
            return 130
        self.write()
        return int(any(one.state not in ("done", LEFT_OUT) for one in self.states))

    def begin(self, task: Task, number: int, total: int) -> None:
        self.write()
        left = max(0.0, self.deadline - time.monotonic())
        print(f"{self.stage} [{number}/{total}] {task.name} ({left:.0f} s left)", file=sys.stderr, flush=True)

    def measure(self, state: ItemState) -> Figures:
        """Runs an item and notes how it stands. Raises ItemFailed."""
        limit_s = min(state.item.limit_s, self.deadline - time.monotonic())
        if limit_s < min(LEAST_S, state.item.limit_s):
            state.summary = "not begun, as the time is used up; the same command does it"
            raise ItemFailed(state.summary)
        clock = time.monotonic()
        try:
            found = run_item(state.item, limit_s)
        except ItemFailed as error:
            state.state, state.summary, state.output = "FAILED", str(error), error.output
            state.seconds = time.monotonic() - clock
            print(f"  FAILED after {state.seconds:.0f} s: {error}", file=sys.stderr, flush=True)
            raise
        show(state, found, time.monotonic() - clock)
        print(f"  done in {state.seconds:.0f} s: {state.summary}", file=sys.stderr, flush=True)
        return found

    def write(self) -> None:
        command = f"python -m benchmarks.gpu --stage {self.stage}{' --dry-run' if 'dry' in self.name else ''}"
        write(self.folder / f"{self.name}.md", document(self.stage, command, self.facts, self.states))


def show(state: ItemState, found: Figures, seconds: float) -> None:
    """Notes an item as done, with what it found."""
    state.state, state.seconds = "done", seconds
    state.text = found.get("text", "")
    last = "see below" if state.text else next(iter(found.get("output", "").splitlines()[-1:]), "")
    state.summary = found.get("summary") or last


if __name__ == "__main__":
    main()
