"""Seconds from a command to the first token of its text, with an empty and with a filled cache, and of importing."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from functools import partial
from statistics import median

from benchmarks.real.child import TIMEOUT_S, environment
from benchmarks.real.settings import RealModelSettings
from benchmarks.real.tasks import Figures, Task
from benchmarks.shared.report import markdown_table
from lp.platform.disk_cache import VARIABLE

PART = "first token"
PROMPT = "The capital of France is"
DTYPES = ("float32", "bfloat16")


def tasks(settings: RealModelSettings) -> list[Task]:
    asked = {"threads": settings.threads, "rounds": settings.rounds, "compile": settings.compile}
    return [Task(PART, dtype, asked, partial(measure, settings, dtype)) for dtype in DTYPES]


def measure(settings: RealModelSettings, dtype: str) -> Figures:
    """Raises ValueError if the command fails. The model is unpacked beforehand; nothing else is in the cold cache."""
    command = [sys.executable, "-m", "launch.generate", f"model.path={settings.model}", f"model.dtype={dtype}"]
    command += [f"model.compile={settings.compile}", f"prompt={PROMPT}", "max_new_tokens=4", "show_prompt=false"]
    threads = str(settings.threads)
    with tempfile.TemporaryDirectory(prefix="lookahead-parallel-") as cache:
        variables = environment(OMP_NUM_THREADS=threads, **{VARIABLE: cache})
        cold = seconds_to_output(command, variables)
        warm = [seconds_to_output(command, variables) for _ in range(settings.rounds)]
        python = [sys.executable, "-c"]
        started = [seconds_to_output([*python, "print(1)"], variables) for _ in range(settings.rounds)]
        imported = [seconds_to_output([*python, "import launch.generate; print(1)"], variables) for _ in started]
    return {"cold_s": cold, "warm_s": warm, "importing_s": max(0.0, median(imported) - median(started))}


def seconds_to_output(command: Sequence[str], variables: Mapping[str, str]) -> float:
    """Seconds from the start of a command to the first character that it prints. Raises ValueError if it fails."""
    begin = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=dict(variables)) as process:
        assert process.stdout is not None
        first = process.stdout.read(1)
        seconds = time.perf_counter() - begin
        try:
            _, told = process.communicate(timeout=TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            raise ValueError(f"{' '.join(command[1:4])} did not end") from None
    if process.returncode or not first:
        lines = told.decode(errors="replace").strip().splitlines() or ["it said nothing"]
        raise ValueError(f"{' '.join(command[1:4])} ended with exit code {process.returncode}: {lines[-1]}")
    return seconds


def describe(kept: Mapping[str, Figures]) -> str:
    rows = [
        (dtype, f"{figures['cold_s']:.1f}", f"{median(figures['warm_s']):.1f}", f"{figures['importing_s']:.1f}")
        for dtype, figures in kept.items()
    ]
    return (
        "Seconds from the command to the first character, by `launch/generate.py` on an unpacked model. Cold: the "
        "cache of compiled code and step times is empty.\n\n"
        + markdown_table(["", "cold", "warm", "of which importing"], rows)
    )
