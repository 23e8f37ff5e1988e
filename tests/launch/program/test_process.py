"""How a program prepares its own process."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from launch.program import process
from parallel.mesh import Mesh


def test_frozen_objects_are_released_at_the_end() -> None:
    program = """
import atexit, gc
from launch.program import process

atexit.register(lambda: print(gc.get_freeze_count()))  # runs last
process.freeze_heap()
print(gc.get_freeze_count() > 1000)
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ended.stdout.splitlines() == ["True", "0"]


@pytest.mark.parametrize(
    ("threads", "num_local_ranks", "variable", "expected"),
    [(None, 1, "3", 7), (None, 1, "", 8), (None, 2, "3", 4), (None, 16, "3", 1), (5, 1, "3", 5), (5, 2, "", 5)],
)
def test_threads(
    threads: int | None, num_local_ranks: int, variable: str, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The host has 8 cores, and torch has 7 threads before. torchrun itself sets OMP_NUM_THREADS for several ranks."""
    monkeypatch.setenv("OMP_NUM_THREADS", variable)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(8)))
    found = [7]
    monkeypatch.setattr(torch, "set_num_threads", found.append)
    mesh = Mesh(axes={"lp": num_local_ranks}, num_ranks=num_local_ranks, num_local_ranks=num_local_ranks)
    process.set_threads(mesh, threads)
    assert found[-1] == expected
