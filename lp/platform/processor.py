"""This machine's processor: its name, its instructions and the cores that this process may use. Needs no PyTorch."""

from __future__ import annotations

import os
import platform
from functools import cache
from pathlib import Path


def processor_name() -> str:
    """The processor's model if the system tells it, else its architecture."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


@cache
def processor_features() -> str:
    """What the processor can do, as far as the system says: names of instructions, with spaces between."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line for line in lines if line.startswith(("flags", "Features"))), platform.processor())


def num_cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
