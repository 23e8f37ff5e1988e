"""The products of a model that is not invariant, each by the function that was chosen for its shape and number of rows.

Without a choice a product is cuBLAS's. Knows nothing of how functions are chosen (product_times.py).

R rows, K inputs, N outputs
"""

from __future__ import annotations

import warnings
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import linear

from lp.model.gpu.cuda_graphs import LADDER
from lp.model.gpu.split_product import MOST_TILES, multiply_in_splits, split_counts
from lp.platform.hardware import dtype_name

# Multiplies x [R, K] by a weight [K, N] with any strides and adds a bias [N]. Returns [R, N] in the format of x.
Multiply = Callable[[Tensor, Tensor, Tensor | None], Tensor]

# The numbers of rows of graphs at which reading weights takes longer than arithmetic, so that choosing may pay.
ROWS = tuple(rows for rows in LADDER if rows <= 128)
# The names of the functions that are torch's.
CUBLAS, CUBLASLT = "cublas", "cublaslt"

# Torch says so once for each process that prefers cuBLASLt, whose products are compared and timed here.
warnings.filterwarnings("ignore", message=r"torch\.backends\.cuda\.preferred_blas_library is an experimental feature")


@dataclass(frozen=True)
class ProductShape:
    """What the speed of a product depends on, beside the number of rows. strides: of inputs and outputs."""

    num_inputs: int
    num_outputs: int
    strides: tuple[int, ...]
    has_bias: bool
    dtype: torch.dtype

    @staticmethod
    def of(weight: Tensor, bias: Tensor | None) -> ProductShape:
        num_inputs, num_outputs = weight.shape
        return ProductShape(num_inputs, num_outputs, weight.stride(), bias is not None, weight.dtype)

    @property
    def name(self) -> str:
        """Such as "4096x6144 bfloat16 strides 1x4096"."""
        strides = "x".join(map(str, self.strides))
        bias = " bias" if self.has_bias else ""
        return f"{self.num_inputs}x{self.num_outputs} {dtype_name(self.dtype)} strides {strides}{bias}"


class Products:
    """Computes products. Its functions may be captured: which one a graph launches is fixed when it is captured."""

    def __init__(self, device: torch.device, rows: Sequence[int] = ROWS):
        """rows: the numbers of rows for which functions are chosen, in ascending order."""
        self.rows = rows
        self._counters = torch.zeros(MOST_TILES, dtype=torch.int32, device=device)
        self._chosen: dict[tuple[ProductShape, int], Multiply] = {}

    def __call__(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """See Multiply."""
        return self.function(ProductShape.of(weight, bias), len(x))(x, weight, bias)

    def function(self, shape: ProductShape, num_rows: int) -> Multiply:
        """What computes a product of so many rows: the function that was chosen for the next number in `rows`."""
        if num_rows > self.rows[-1]:
            return multiply_by_cublas
        return self._chosen.get((shape, self.rows[bisect_left(self.rows, num_rows)]), multiply_by_cublas)

    def candidates(self, shape: ProductShape, num_rows: int) -> dict[str, Multiply]:
        """The functions that may be chosen, by their names."""
        counts = split_counts(num_rows, shape.num_inputs, shape.num_outputs, shape.dtype.itemsize)
        splits = {
            f"split-{one}": partial(multiply_in_splits, num_splits=one, counters=self._counters) for one in counts
        }
        return {CUBLAS: multiply_by_cublas, CUBLASLT: multiply_by_cublaslt, **splits}

    def choose(self, shape: ProductShape, num_rows: int, name: str) -> None:
        """num_rows: one of `rows`. name: of a candidate."""
        self._chosen[shape, num_rows] = self.candidates(shape, num_rows)[name]


def multiply_by_cublas(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """See Multiply. By the library that torch prefers, which is cuBLAS if nobody has changed that."""
    if weight.stride(0) == 1:
        return linear(x, weight.t(), bias)
    return x @ weight if bias is None else torch.addmm(bias, x, weight)


def multiply_by_cublaslt(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """See Multiply. Raises RuntimeError for a torch without cuBLASLt."""
    with _preferring_cublaslt():
        return multiply_by_cublas(x, weight, bias)


@contextmanager
def _preferring_cublaslt() -> Iterator[None]:
    """Torch asks for the library, and the library for a kernel, on the host when a product is launched or captured."""
    before = torch.backends.cuda.preferred_blas_library()
    torch.backends.cuda.preferred_blas_library("cublaslt")
    try:
        yield
    finally:
        torch.backends.cuda.preferred_blas_library(before)
