"""Describes the machine and the versions of the libraries with which figures are measured."""

from __future__ import annotations

import os
import platform
from datetime import datetime
from typing import Any

import torch
import transformers

from launch.sweep.ranks import usable_cores
from lp.platform.hardware import processor_name


def describe_hardware() -> dict[str, Any]:
    """Describes the machine of this process, in JSON values."""
    return {
        "date": f"{datetime.now():%Y-%m-%d}",
        "cpu": processor_name(),
        "cores": len(usable_cores()),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }
