"""The selective scan of Mamba (arXiv 2312.00752): each number of the matrix has a decay of its own.

see base.py; D dimension of the state, E channels
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import softplus

from lp.kv_cache.recurrent import State
from lp.model.recurrent.base import RecurrentLayer, RecurrentStep, StateRows


class SelectiveScan(RecurrentLayer):
    """Its state is the last inputs of the convolution [K - 1, E] and the matrix [D, E]. With norms of time steps, keys
    and queries, as in Jamba.
    """

    def compute(self, hidden: Tensor, step: RecurrentStep) -> Tensor:
        mixed, gate = self.mixer.in_proj(hidden).chunk(2, dim=1)
        return self.mixer.out_proj(step.recur(self, [mixed]) * self.mixer.act(gate))

    def begin(self, like: Tensor) -> State:
        mixer = self.mixer
        inputs = like.new_zeros(mixer.conv_kernel_size - 1, mixer.intermediate_size)
        return inputs, like.new_zeros(mixer.ssm_state_size, mixer.intermediate_size, dtype=torch.float32)

    def run(self, rows: StateRows, inputs: Sequence[Tensor]) -> Tensor:
        mixer, (mixed,) = self.mixer, inputs
        convolved = mixer.act(rows.convolve(mixed, mixer.conv1d))
        sizes = [mixer.time_step_rank, mixer.ssm_state_size, mixer.ssm_state_size]
        time, key, query = mixer.x_proj(convolved).split(sizes, dim=1)
        times = softplus(mixer.dt_proj(mixer.dt_layernorm(time)).float())
        keys, queries = mixer.b_layernorm(key).float(), mixer.c_layernorm(query).float()
        values, rates = convolved.float(), (-mixer.A_log.float().exp()).T
        found = rows.scan(queries, keys, values * times, times, rates)
        return (found + values * mixer.D).to(mixed.dtype)
