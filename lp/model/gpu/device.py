"""What must hold in a thread while it runs a model on a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

# Without cuDNN, which makes a plan of some 30 ms for each new number of keys, and these change in every step.
_BACKENDS = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


_NOTHING = nullcontext()


def current(device: torch.device) -> AbstractContextManager[None]:
    """Makes a GPU the thread's current device, on which streams and graphs are made. Does nothing for another device.

    Every thread has a current device of its own, and it is the first GPU until it is set.
    """
    return _current_gpu(device) if device.type == "cuda" else _NOTHING


@contextmanager
def _current_gpu(device: torch.device) -> Iterator[None]:
    with torch.cuda.device(device), sdpa_kernel(_BACKENDS):
        yield
