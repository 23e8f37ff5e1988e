"""Shows by what decode=auto chooses on this machine, and what speed comes of it.

    python launch/tune.py model.path=FOLDER
    torchrun --nproc-per-node 2 launch/tune.py parallel=lp workload=humaneval workload.path=FILE.jsonl

Measures the time of a step by its rows (later runs use what it finds) and continues the prompts of a workload, with
decode=auto and by autoregressive steps. Prints the times, the rows and the window that were chosen, and the speed that
they let expect beside the one that was measured.
"""

from __future__ import annotations

import logging
import signal
import sys
from dataclasses import dataclass, field

import torch
from rich.console import Console
from tqdm import tqdm

from launch.config import engine_settings, process
from launch.config.ending import leave
from launch.config.runtime import Runtime, RuntimeSettings, follow, running
from launch.data import workloads
from launch.data.workloads import WorkloadSettings
from launch.diagnostics import speed
from launch.diagnostics.trial import Trial, make_requests
from lp.engine.engine import NOT_A_NUMBER
from lp.methods.registry import DEFAULT
from lp.platform.hardware import dtype_name
from lp.request import DecodingMethod
from lp.runner.step_times.measure import StepTimesSource, origin
from lp.text.stopping import Stopping
from parallel.groups.worker import run_engine

log = logging.getLogger("lookahead")


@dataclass
class TuneSettings(RuntimeSettings):
    """workload: the prompts. ignore_eos: whether all texts get the same length."""

    workload: WorkloadSettings = field(default_factory=WorkloadSettings)
    ignore_eos: bool = False
    step_times: StepTimesSource = StepTimesSource.measure


def check(settings: TuneSettings) -> DecodingMethod:
    """The method to tune. Raises ValueError for settings that leave nothing to choose or to compare."""
    decode = settings.decode
    if rows := decode.to_dict().get("rows"):
        raise ValueError(f"decode.rows={rows} leaves no choice; leave it out, or bound it by decode.max_rows")
    if not decode.row_bounds().by_time or not decode.tells_steps:
        raise ValueError(f"decode={decode.method} has a fixed size; leave it out to tune decode={DEFAULT.method}")
    if settings.step_times is StepTimesSource.off:
        raise ValueError("step_times=off leaves nothing to choose by; use step_times=measure or auto")
    if settings.workload.max_new_tokens == 1:
        raise ValueError("workload.max_new_tokens=1 comes with the prompt's step; ask for 2 or more")
    return decode


def run(settings: TuneSettings) -> int:
    """Exit code 0, 1 if the model answered NaN, or 128 + the signal that ended it early. Raises ValueError, OSError."""
    decode = check(settings)
    problems = workloads.load(settings.workload)
    stopping = Stopping(settings.workload.max_new_tokens, ignore_eos=settings.ignore_eos)
    with running(settings) as runtime:
        if not runtime.channel.is_leader:
            return follow(runtime)
        requests = make_requests(runtime.engine.request_builder, problems, stopping)
        with tqdm(total=len(requests), unit="text", file=sys.stderr, disable=None) as bar:
            trial = Trial(requests, bar.update)
            signal.signal(signal.SIGINT, trial.queue.interrupt)
            signal.signal(signal.SIGTERM, trial.queue.interrupt)
            run_engine(runtime.engine, runtime.channel, trial.queue, trial.emit)
    if trial.queue.interrupted_by:
        return 128 + trial.queue.interrupted_by
    if trial.failed:
        log.error("error: %s", NOT_A_NUMBER)
        return 1
    show(runtime, decode, trial)
    return 0


def show(runtime: Runtime, decode: DecodingMethod, trial: Trial) -> None:
    """Prints what was found. Raises ValueError if no text went beyond its first step."""
    if not all(steps.rows for steps in trial.steps.values()):
        raise ValueError("all texts ended with their first step; use other prompts, or ignore_eos=true")
    engine, mesh = runtime.engine, runtime.mesh
    times, model = engine.history.step_times, engine.checkpoint.model
    temperature = engine.request_builder.sampling.temperature
    assert times is not None and temperature is not None
    console = Console()
    console.print(
        f"{engine.checkpoint.name}, {dtype_name(model.dtype)} on {model.device}; "
        f"{mesh.mode} on {mesh.num_ranks} rank(s), {torch.get_num_threads()} thread(s) each",
        highlight=False,
    )
    console.print(speed.curve(times))
    console.print(f"{origin(times)}; steps took {times.load:.2f} times as long lately", style="dim", highlight=False)
    console.print(speed.rows_chosen(trial.steps[decode.method]), highlight=False)
    if windows := decode.windows_tried(engine.history, temperature):
        console.print(speed.windows(windows.sizes, windows.levels))
    console.print(speed.outlook(times, trial.steps))
    console.print(
        "Of steps after the prompt's. Expected: by the times above, at the tokens per step of this run; measured: by "
        "the clock, with all that a step needs beside the model. Autoregressive: on the same ranks.",
        style="dim",
        highlight=False,
    )


def main() -> int:
    engine_settings.register("tune", TuneSettings, workload=WorkloadSettings)
    return process.main("tune", TuneSettings, run, usage=__doc__ or "")


if __name__ == "__main__":
    leave(main())
