"""Runs the programs as a user does: in processes and a folder of their own, with or without torchrun."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import IO

from tests.parallel.ranks import free_port

CHECKOUT = Path(__file__).resolve().parents[2]


def command(program: str, arguments: list[str], num_ranks: int = 1) -> list[str]:
    """Returns the command line of launch/PROGRAM.py. torchrun starts several ranks, on a free port."""
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
    program: str, arguments: list[str], folder: Path, num_ranks: int = 1, timeout_s: float = 120.0, lines: str = ""
) -> subprocess.CompletedProcess[str]:
    """Runs a program in `folder` to its end. lines: its standard input."""
    return subprocess.run(
        command(program, arguments, num_ranks),
        cwd=folder,
        env=environment(),
        input=lines,
        capture_output=True,
        text=True,
        timeout=timeout_s,
    )


def start(
    program: str,
    arguments: list[str],
    folder: Path,
    num_ranks: int = 1,
    stdout: int | IO[bytes] = subprocess.PIPE,
    stderr: int = subprocess.PIPE,
    pipe_bytes: int = -1,
    **variables: str,
) -> subprocess.Popen[str]:
    """Starts a program in `folder` without waiting for its end.

    pipe_bytes: size of the pipe of stdout. variables: more variables of its environment.
    """
    return subprocess.Popen(
        command(program, arguments, num_ranks),
        cwd=folder,
        env=environment(**variables),
        stdout=stdout,
        stderr=stderr,
        text=True,
        pipesize=pipe_bytes,
    )


def start_ranks(
    program: str, arguments: list[str], folder: Path, stdout: int | IO[bytes]
) -> list[subprocess.Popen[str]]:
    """Starts two ranks without torchrun, which would end the survivor itself. stdout: that of rank 0."""
    port = str(free_port())
    ranks = []
    for rank in range(2):
        place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2, "MASTER_PORT": port}
        variables = {"MASTER_ADDR": "127.0.0.1", **{key: str(value) for key, value in place.items()}}
        outputs = (stdout, subprocess.PIPE) if rank == 0 else (subprocess.DEVNULL, subprocess.DEVNULL)
        ranks.append(start(program, arguments, folder, 1, *outputs, **variables))
    return ranks


def write_prompts(folder: Path, count: int, prompt: str = "def f(x):") -> str:
    """Writes a file of `count` equal prompts and returns the argument that names it."""
    (folder / "prompts.jsonl").write_text("\n".join(json.dumps({"prompt": prompt}) for _ in range(count)))
    return "prompts=prompts.jsonl"
