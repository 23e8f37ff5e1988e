"""Runs the programs as a user does: processes of their own, under torchrun or not, in a folder of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.parallel.ranks import free_port

CHECKOUT = Path(__file__).resolve().parents[2]


def command(program: str, arguments: list[str], num_ranks: int = 1) -> list[str]:
    """The command line of launch/PROGRAM.py; several ranks are started by torchrun on a free port."""
    torchrun = ["-m", "torch.distributed.run", "--nproc-per-node", str(num_ranks), "--master-port", str(free_port())]
    return [
        sys.executable,
        *(torchrun if num_ranks > 1 else []),
        str(CHECKOUT / "launch" / f"{program}.py"),
        *arguments,
    ]


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", **more}


def run(
    program: str, arguments: list[str], folder: Path, num_ranks: int = 1, timeout_s: float = 120.0
) -> subprocess.CompletedProcess[str]:
    """Runs to the end in `folder`."""
    return subprocess.run(
        command(program, arguments, num_ranks),
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=timeout_s,
    )
