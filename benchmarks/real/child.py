"""Runs another command of this project in a process of its own, so that nothing of its memory or threads is left."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

TIMEOUT_S = 3600


def run_benchmark(name: str, *options: str) -> dict[str, Any]:
    """The figures that a benchmark command writes. Its progress is shown. Raises ValueError if it fails."""
    with TemporaryDirectory(prefix="lookahead-parallel-") as folder:
        command = [sys.executable, "-m", f"benchmarks.{name}", *options, "--output", folder]
        done = subprocess.run(command, stdout=subprocess.DEVNULL, timeout=TIMEOUT_S, env=environment())
        written = sorted(Path(folder).glob("*.json"))
        if done.returncode or not written:
            raise ValueError(f"benchmarks.{name} {' '.join(options)} ended with exit code {done.returncode}")
        return json.loads(written[0].read_text(encoding="utf-8"))


def environment(**more: str) -> dict[str, str]:
    """This process's environment, in which this checkout's modules are found first."""
    checkout = str(Path(__file__).resolve().parents[2])
    paths = [checkout, *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), **more}
