"""How fast ranks and GPUs of this machine talk: round trips between processes, copies between GPUs."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path

import torch

from launch.checkup.findings import Finding
from launch.checkup.machine import READ_BYTES, copy_s
from launch.command.ranks import run_processes

SECTION = "links"


def between_ranks(num_ranks: int) -> Iterator[Finding]:
    """The time of one exchange of a step's integers between ranks, by shared memory and by gloo."""
    with tempfile.TemporaryDirectory(prefix="lookahead-parallel-") as folder:
        path = Path(folder) / "microseconds.json"
        code = run_processes([sys.executable, "-P", "-m", "launch.checkup.exchange", str(path)], num_ranks)
        if code or not path.exists():
            text = f"{num_ranks} ranks on this machine cannot talk (exit code {code}); what they say stands above"
            yield Finding(SECTION, "ranks", text, is_broken=True)
            return
        measured: dict[str, float] = json.loads(path.read_text(encoding="utf-8"))
    for kind, microseconds in measured.items():
        use = "used on one machine" if kind == "shm" else "used between machines"
        text = f"{microseconds:.0f} us an exchange between {num_ranks} ranks ({use})"
        yield Finding(SECTION, kind, text, {"ranks": num_ranks, "microseconds": microseconds})


def between_gpus(num_bytes: int = READ_BYTES) -> Iterator[Finding]:
    """The speed of copies between each two GPUs, and whether they go straight from one to the other."""
    if not torch.cuda.is_available():
        return
    for one, other in combinations(range(torch.cuda.device_count()), 2):
        speed = num_bytes / copy_s(torch.device("cuda", one), torch.device("cuda", other), num_bytes)
        is_direct = torch.cuda.can_device_access_peer(one, other)
        how = "straight" if is_direct else "through the host's memory"
        value = {"bytes_per_s": speed, "is_direct": is_direct}
        yield Finding(SECTION, f"cuda:{one} to cuda:{other}", f"{speed / 1e9:.1f} GB/s, {how}", value)
