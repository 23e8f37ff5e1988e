"""The rates that a machine itself shows: bytes per second that it can read, operations per second that it can do."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import linear

# Bytes of the buffer that is read: far more than caches hold.
BUFFER = 1 << 30
# Size of the square matrices that are multiplied, by the type of device: small enough for a core's cache, large enough
# for a GPU.
PRODUCT_SIZE = {"cpu": 512, "cuda": 8192}
# Matrix products in one reading.
NUM_PRODUCTS = 8


def time_once(run: Callable[[], object], device: torch.device) -> float:
    """Seconds until the device has done what `run` asks of it.

    With one thread on a CPU it is processor time, which other programs do not lengthen much.
    """
    clock = time.thread_time if device.type == "cpu" and torch.get_num_threads() == 1 else time.perf_counter
    _wait(device)
    begin = clock()
    run()
    _wait(device)
    return clock() - begin


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


@dataclass(frozen=True)
class MachineRates:
    """The best rates of a machine. flops_per_s: in matrix products."""

    bytes_per_s: float
    flops_per_s: float


class RateGauge:
    """Reads a machine's rates one reading at a time, so that it can take turns with what is compared with them."""

    def __init__(self, device: torch.device, dtype: torch.dtype, num_bytes: int = BUFFER):
        self.device = device
        self._buffer = torch.ones(num_bytes // 8, dtype=torch.int64, device=device)
        self._copy = torch.empty_like(self._buffer) if device.type == "cuda" else None
        size = PRODUCT_SIZE[device.type]
        self._products = _products(torch.full((size, size), 1 / size, dtype=dtype, device=device))
        self._flops = 2 * NUM_PRODUCTS * size**3

    def read(self) -> MachineRates:
        return MachineRates(self.read_bytes_per_s(), self.read_flops_per_s())

    def read_bytes_per_s(self) -> float:
        """A CPU reads the buffer, as a step reads its weights; a GPU copies it, which counts bytes read and written."""
        copy = self._copy
        num_bytes = self._buffer.numel() * self._buffer.element_size()
        if copy is None:
            return num_bytes / time_once(self._buffer.sum, self.device)
        return 2 * num_bytes / time_once(lambda: copy.copy_(self._buffer), self.device)

    @torch.inference_mode()
    def read_flops_per_s(self) -> float:
        """Multiplies square matrices in the model's own format, in the fastest way that there is."""
        return max(self._flops / time_once(partial(_repeat, product), self.device) for product in self._products)


def _products(matrix: Tensor) -> list[Callable[[], Tensor]]:
    """Ways to multiply a matrix with itself: torch's own and, on a CPU, with packed weights, as compiled code does."""
    plain = partial(linear, matrix, matrix)
    if matrix.device.type != "cpu":
        return [plain]
    try:
        packed = torch.ops.mkldnn._reorder_linear_weight(matrix, len(matrix))
        by_packed = partial(torch.ops.mkldnn._linear_pointwise, matrix, packed, None, "none", [], "")
        by_packed()
    except (RuntimeError, AttributeError):  # this CPU, or this build of torch, does not have it
        return [plain]
    return [plain, by_packed]


def _repeat(run: Callable[[], object]) -> None:
    for _ in range(NUM_PRODUCTS):
        run()
