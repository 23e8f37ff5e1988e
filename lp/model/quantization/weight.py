"""How a quantised weight's numbers are stored: codes of a few bits, and scales that groups of inputs share.

A number of the weight is

    scale * step * (value of its code) - minimum * minimum_step

N outputs, K inputs, S inputs that share a scale (and a minimum), G inputs that share a step
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

# Inputs that share a minimum_step, and of which K must be a multiple.
GROUP = 32
# Numbers that are unpacked at a time.
AT_ONCE = 1 << 20


@dataclass(frozen=True)
class WeightFormat:
    """How the numbers of a weight are stored. Two weights of equal formats are read by the same kernel.

    name: as users know it. bits: of a code, 4, 5, 6 or 8. zero: the value of a code is the code less this, unless there
    is a codebook of the values of all codes, 16 or 256. span: S, a multiple of 32; None means all inputs. group: G, 16
    or 32. scale: the dtype of scales and minima, float16 or float32; uint8 means exponents of powers of two, 127 being
    that of 1. step: the dtype of steps, int8 or uint8; None means that every step is 1. is_split: whether kernels store
    the upper halves of all codes, which are of 8 bits, before the lower ones.
    """

    name: str
    bits: int
    zero: int = 0
    codebook: tuple[float, ...] | None = None
    span: int | None = GROUP
    group: int = GROUP
    scale: torch.dtype = torch.float16
    step: torch.dtype | None = None
    has_minima: bool = False
    has_minimum_steps: bool = False
    is_split: bool = False


@dataclass(frozen=True)
class Numbers:
    """Some outputs of a weight. codes: uint8 [N, K]. scales: [N, K / S], in the format's dtype. steps: [N, K / G].

    minima: [N, K / S]. minimum_steps: uint8 [N, K / 32].
    """

    codes: Tensor
    scales: Tensor
    steps: Tensor | None = None
    minima: Tensor | None = None
    minimum_steps: Tensor | None = None


class QuantizedWeight(ABC):
    """A weight of a product, or a table of embeddings, as it is stored."""

    def __init__(self, format: WeightFormat, num_outputs: int, num_inputs: int, dtype: torch.dtype):
        """dtype: of the model's other numbers. Raises ValueError for inputs whose number does not suit the format."""
        span = format.span or num_inputs
        if num_inputs % GROUP or num_inputs % span:
            raise ValueError(f"{num_inputs} inputs are not a multiple of {max(span, GROUP)}, as {format.name} needs")
        self.format = format
        self.num_outputs, self.num_inputs = num_outputs, num_inputs
        self.dtype = dtype

    @property
    def shape(self) -> tuple[int, int]:
        """[K, N], as a product sees it."""
        return self.num_inputs, self.num_outputs

    @property
    def span(self) -> int:
        """S."""
        return self.format.span or self.num_inputs

    @property
    def device(self) -> torch.device:
        """Where its numbers are."""
        return torch.device("cpu")

    @property
    @abstractmethod
    def num_bytes(self) -> int:
        """The bytes that it takes where it is stored."""

    @abstractmethod
    def free(self) -> None:
        """Gives the memory of the stored numbers back. They cannot be read any more."""

    @abstractmethod
    def numbers(self, first: int, last: int) -> Numbers:
        """The outputs [first, last)."""

    @abstractmethod
    def rows(self, outputs: Tensor) -> Tensor:
        """float32 [..., K]: the numbers of these outputs, int64 [...]."""

    def dequantized(self) -> Iterator[Tensor]:
        """All numbers as float32 [n, K], some outputs at a time."""
        at_once = max(1, AT_ONCE // self.num_inputs)
        for first in range(0, self.num_outputs, at_once):
            yield dequantize(self.format, self.numbers(first, min(first + at_once, self.num_outputs)))


class IndexedWeight(QuantizedWeight):
    """A weight of which the numbers of any outputs are found in the same way."""

    @abstractmethod
    def _numbers(self, outputs: slice | Tensor) -> Numbers:
        """outputs: int64 [n] on the weight's device, or a slice."""

    def numbers(self, first: int, last: int) -> Numbers:
        return self._numbers(slice(first, last))

    def rows(self, outputs: Tensor) -> Tensor:
        numbers = self._numbers(outputs.reshape(-1).to(self.device))
        return dequantize(self.format, numbers).view(*outputs.shape, self.num_inputs)


def summary(weights: Iterable[QuantizedWeight]) -> str:
    """How many weights there are in each format, and the memory that they take."""
    found = [*weights]
    kinds = ", ".join(f"{count} in {name}" for name, count in Counter(one.format.name for one in found).items())
    return f"{kinds or 'none is quantised'}, {sum(one.num_bytes for one in found) / 1e9:.3g} GB"


def dequantize(format: WeightFormat, numbers: Numbers) -> Tensor:
    """float32 [N, K]."""
    codes = numbers.codes
    if format.codebook is not None:
        values = torch.tensor(format.codebook, dtype=torch.float32, device=codes.device)[codes.int()]
    else:
        values = codes.to(torch.float32)
        if format.zero:
            values -= format.zero
    scales = _products(numbers.scales, numbers.steps)
    values.view(*scales.shape, -1).mul_(scales[..., None])
    if numbers.minima is not None:
        minima = _products(numbers.minima, numbers.minimum_steps)
        values.view(*minima.shape, -1).sub_(minima[..., None])
    return values


def _products(scales: Tensor, steps: Tensor | None) -> Tensor:
    """float32: the scales [N, n], or each of them times the steps [N, m] that share it."""
    numbers = as_float(scales)
    if steps is None:
        return numbers
    return (steps.view(*numbers.shape, -1) * numbers[..., None]).view(steps.shape)


def as_float(scales: Tensor) -> Tensor:
    """Scales or minima in float32. uint8: exponents of powers of two."""
    return torch.exp2(scales.float() - 127) if scales.dtype == torch.uint8 else scales.float()
