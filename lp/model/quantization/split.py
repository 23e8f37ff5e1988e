"""A weight with codes of 8 bits whose upper and lower halves are stored apart, so that one of them can be read alone.

The upper halves say what each number is, but for at most 7.5 scales.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from lp.model.quantization.weight import Numbers, QuantizedWeight


def can_split(weight: QuantizedWeight) -> bool:
    """Whether the numbers of a weight are scales times whole numbers from -128 to 127, and nothing else."""
    format = weight.format
    is_linear = format.bits == 8 and format.zero == 128 and format.codebook is None and format.step is None
    return is_linear and not format.has_minima and format.scale != torch.uint8


class SplitWeight(QuantizedWeight):
    """Gives the numbers of a weight that can be split, in a format whose halves are stored apart."""

    def __init__(self, whole: QuantizedWeight):
        super().__init__(replace(whole.format, is_split=True), whole.num_outputs, whole.num_inputs, whole.dtype)
        self._whole = whole

    @property
    def num_bytes(self) -> int:
        return self._whole.num_bytes

    def free(self) -> None:
        self._whole.free()

    def numbers(self, first: int, last: int) -> Numbers:
        return self._whole.numbers(first, last)

    def rows(self, outputs: Tensor) -> Tensor:
        return self._whole.rows(outputs)
