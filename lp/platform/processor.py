"""This machine's processor: its name, its instructions and the cores that this process may use. Needs no PyTorch."""

from __future__ import annotations

import os
import platform
from functools import cache
from pathlib import Path


def processor_name() -> str:
    """The processor's model if the system names it, else its architecture."""
    return _described_by("model name").partition(":")[2].strip() or platform.processor() or platform.machine()


@cache
def processor_features() -> str:
    """What the processor can do, as far as the system says: names of instructions, with spaces between."""
    return _described_by("flags", "Features") or platform.processor()


def _described_by(*names: str) -> str:
    """The first line of Linux's description of the processor that begins with one of these names; empty for none."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    return next((line for line in lines if line.startswith(names)), "")


def num_cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
