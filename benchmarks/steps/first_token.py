"""Measures the time from a command to its first token, and how much of it is importing.

Each run is a process of its own, as a user starts it. Cold: step times and compiled code are not there; what has been
downloaded and unpacked is.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from lp import cache_files

CHECKOUT = Path(__file__).resolve().parents[2]
PROMPT = "The capital of France is"


@dataclass(frozen=True)
class StartUp:
    """Seconds, each the least of some runs: importing the libraries, and first tokens on a cold and a warm cache."""

    importing: float
    cold: float
    warm: float


def measure_start_up(settings: list[str], threads: int, rounds: int) -> StartUp:
    """Starts `launch/generate.py` with settings such as model.path=FOLDER. Raises ValueError if it fails.

    rounds: the number of runs of each kind, which alternate.
    """
    runs = []
    for _ in range(rounds):
        with _cold_cache() as folder:
            environment = {**os.environ, cache_files.VARIABLE: str(folder), "OMP_NUM_THREADS": str(threads)}
            importing = _seconds(["-c", "import launch.generate; print(flush=True)"], environment)
            command = ["launch/generate.py", *settings, f"prompt={PROMPT}", "max_new_tokens=1", "show_prompt=false"]
            runs.append((importing, _seconds(command, environment), _seconds(command, environment)))
    return StartUp(*(min(seconds) for seconds in zip(*runs, strict=True)))


def describe_start_up(found: StartUp) -> str:
    """A Markdown table."""
    return (
        "| importing, s | first token, cold cache, s | first token, warm cache, s |\n|---:|---:|---:|\n"
        f"| {found.importing:.1f} | {found.cold:.1f} | {found.warm:.1f} |"
    )


@contextmanager
def _cold_cache() -> Iterator[Path]:
    """A cache folder that has only the downloaded and unpacked models of the user's own."""
    with TemporaryDirectory() as folder:
        for kind in ("gguf", "packages"):
            if own := cache_files.folder(kind):
                (Path(folder) / kind).symlink_to(own, target_is_directory=True)
        yield Path(folder)


def _seconds(arguments: list[str], environment: dict[str, str]) -> float:
    """Seconds from the start of a Python process to the first byte of its output. Raises ValueError if it fails."""
    began = time.monotonic()
    command = [sys.executable, *arguments]
    with subprocess.Popen(
        command, cwd=CHECKOUT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as child:
        assert child.stdout
        child.stdout.read(1)
        seconds = time.monotonic() - began
        _, log = child.communicate()
    if child.returncode:
        raise ValueError(f"{' '.join(command)} ended with {child.returncode}: {log.decode(errors='replace').strip()}")
    return seconds
