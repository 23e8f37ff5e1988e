"""Gated short convolutions, as in LFM2: a token sees itself and a few tokens before it."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from lp.kv_cache.recurrent import State
from lp.model.recurrent.base import RecurrentLayer, RecurrentStep, StateRows


class ShortConvolution(RecurrentLayer):
    """Its state is the last inputs [K - 1, C]."""

    def compute(self, hidden: Tensor, step: RecurrentStep) -> Tensor:
        gate_in, gate_out, inputs = self.mixer.in_proj(hidden).chunk(3, dim=-1)
        return self.mixer.out_proj(gate_out * step.recur(self, [gate_in * inputs]))

    def begin(self, like: Tensor) -> State:
        convolution = self.mixer.conv
        return (like.new_zeros(convolution.kernel_size[0] - 1, convolution.in_channels),)

    def run(self, rows: StateRows, inputs: Sequence[Tensor]) -> Tensor:
        return rows.convolve(inputs[0], self.mixer.conv)
