"""The least time that a step can take on a machine: every weight and cached key and value read once, or every
operation done, whichever is longer, at the rates that the machine itself shows.

Where weights fit the processor's caches, a step may be faster than this floor.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import linear

from benchmarks.projections.arithmetic import Share

BUFFER = 1 << 30
"""Bytes of the buffer that is read: far more than caches hold."""
PRODUCT = {"cpu": 512, "cuda": 8192}
"""Size of the square matrices that are multiplied, by the type of device: small enough for a core's cache, large enough
for a GPU.
"""
NUM_PRODUCTS = 8
"""Of a reading."""


def time_once(run: Callable[[], object], device: torch.device) -> float:
    """Seconds until the device has done it."""
    _wait(device)
    begin = time.perf_counter()
    run()
    _wait(device)
    return time.perf_counter() - begin


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


@dataclass(frozen=True)
class Rates:
    """Of a machine, at its best. flops_per_s: of matrix products."""

    bytes_per_s: float
    flops_per_s: float


class Gauge:
    """Takes a machine's rates a reading at a time, so that it can take turns with what is compared with them."""

    def __init__(self, device: torch.device, dtype: torch.dtype, num_bytes: int = BUFFER):
        self.device = device
        self._buffer = torch.ones(num_bytes // 8, dtype=torch.int64, device=device)
        self._copy = torch.empty_like(self._buffer) if device.type == "cuda" else None
        size = PRODUCT[device.type]
        self._products = _products(torch.full((size, size), 1 / size, dtype=dtype, device=device))
        self._flops = 2 * NUM_PRODUCTS * size**3

    def read_bytes_per_s(self) -> float:
        """On a CPU by reading, as a step does its weights; on a GPU by copying, bytes read and written."""
        copy = self._copy
        num_bytes = self._buffer.numel() * self._buffer.element_size()
        if copy is None:
            return num_bytes / time_once(self._buffer.sum, self.device)
        return 2 * num_bytes / time_once(lambda: copy.copy_(self._buffer), self.device)

    @torch.inference_mode()
    def read_flops_per_s(self) -> float:
        """By square products in the model's own format, in the fastest way that there is."""
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
    except (RuntimeError, AttributeError):  # a CPU, or a build of torch, without it
        return [plain]
    return [plain, by_packed]


def _repeat(run: Callable[[], object]) -> None:
    for _ in range(NUM_PRODUCTS):
        run()


@dataclass(frozen=True)
class Floor:
    """Of one model on one machine. itemsize: bytes of a weight and of an element of the cache."""

    share: Share
    itemsize: int
    rates: Rates

    def num_bytes(self, num_rows: int, cached: int) -> int:
        """What a step has to read: the matrices that rows are multiplied with, keys and values."""
        return self.share.multiplied * self.itemsize + self.share.cache_bytes(cached + num_rows, self.itemsize)

    def seconds(self, num_rows: int, cached: int) -> float:
        moving = self.num_bytes(num_rows, cached) / self.rates.bytes_per_s
        return max(moving, self.share.flops(num_rows, cached) / self.rates.flops_per_s)
