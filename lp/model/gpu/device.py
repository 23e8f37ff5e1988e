"""What must hold in a thread while it runs a model on a GPU."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

# Without cuDNN, which makes a plan of some 30 ms for each new number of keys, and these change in every step.
_BACKENDS = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
_NOTHING = nullcontext()


def current(device: torch.device) -> AbstractContextManager[None]:
    """Makes a GPU the thread's current device, on which streams and graphs are made. Does nothing for another device.

    Every thread has a current device of its own, and it is the first GPU until it is set.
    """
    return torch.cuda.device(device) if device.type == "cuda" else _NOTHING


def attention_of_torch(device: torch.device) -> AbstractContextManager[Any]:
    """Chooses the kernels of torch's attention, where it is called or captured."""
    return sdpa_kernel(_BACKENDS) if device.type == "cuda" else _NOTHING
