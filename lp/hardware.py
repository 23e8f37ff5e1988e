"""Names this machine's processor and devices. Knows nothing of what the names are used for."""

from __future__ import annotations

import platform

import torch


def processor_name() -> str:
    """The processor's model if the system tells it, else its architecture."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def device_name(device: torch.device) -> str:
    """The model of a GPU; for any other device, of the processor."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else processor_name()
