"""How a program's process is prepared: its cores, its threads and its heap."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from launch.config import process
from parallel.mesh import Mesh


@pytest.mark.slow
def test_frozen_objects_are_released_at_the_end() -> None:
    program = """
import atexit, gc
from launch.config import process

atexit.register(lambda: print(gc.get_freeze_count()))  # runs last
process.freeze_heap()
print(gc.get_freeze_count() > 1000)
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ended.stdout.splitlines() == ["True", "0"]


GPU = torch.device("cuda", 0)


@pytest.fixture
def usable(monkeypatch: pytest.MonkeyPatch) -> Iterator[set[int]]:
    """The cores that this process may use, as `pin_near` leaves them."""
    found = {0, 1, 2, 3, 8, 9}

    def restrict(process: int, wanted: set[int]) -> None:
        found.intersection_update(wanted)

    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(found))
    monkeypatch.setattr(os, "sched_setaffinity", restrict)
    known = SimpleNamespace(pci_domain_id=0, pci_bus_id=0x3B, pci_device_id=0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: known)
    yield found


def system(folder: Path, text: str) -> Path:
    (folder / "0000:3b:00.0").mkdir()
    (folder / "0000:3b:00.0" / "local_cpulist").write_text(text)
    return folder


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("2-3,9\n", {2, 3, 9}),
        ("0-15\n", {0, 1, 2, 3, 8, 9}),
        ("20-31\n", {0, 1, 2, 3, 8, 9}),
        ("\n", {0, 1, 2, 3, 8, 9}),
        ("all of them\n", {0, 1, 2, 3, 8, 9}),
    ],
)
def test_a_rank_stays_next_to_its_gpu(text: str, left: set[int], usable: set[int], tmp_path: Path) -> None:
    process.pin_near(GPU, system(tmp_path, text))
    assert usable == left


def test_it_is_said(usable: set[int], tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="lookahead"):
        process.pin_near(GPU, system(tmp_path, "0-1"))
    assert "2 of 6 cores, those next to cuda:0 (parallel.pin=false" in caplog.text


def test_without_a_gpu_or_its_description_nothing_changes(usable: set[int], tmp_path: Path) -> None:
    process.pin_near(GPU, tmp_path)
    process.pin_near(torch.device("cpu"), system(tmp_path, "0"))
    assert usable == {0, 1, 2, 3, 8, 9}


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
