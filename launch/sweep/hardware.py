"""What a figure means nothing without: the machine and the versions it was measured with."""

from __future__ import annotations

import os
import platform
from datetime import datetime
from typing import Any

import torch
import transformers

from launch.sweep.ranks import usable_cores


def describe_hardware() -> dict[str, Any]:
    """Of this process's machine, as JSON values."""
    return {
        "date": f"{datetime.now():%Y-%m-%d}",
        "cpu": _cpu_model(),
        "cores": len(usable_cores()),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }


def _cpu_model() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
