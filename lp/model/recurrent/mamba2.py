"""Mamba-2 (arXiv 2405.21060): each token decays the matrix, and adds the product of its input and its key.

see base.py; D dimension of the state, E dimension of a head, H heads, which are several for each group of keys
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import silu, softplus

from lp.kv_cache.recurrent import State
from lp.model.recurrent.base import RecurrentLayer, RecurrentStep, StateRows


class Mamba2(RecurrentLayer):
    """Its state is the last inputs of the convolution [K - 1, C] and the matrix [H, D, E]."""

    def project(self, hidden: Tensor) -> Tensor:
        return self.mixer.in_proj(hidden)

    def gated(self, read: Tensor, gate: Tensor) -> Tensor:
        """read, gate: [R, H * E]."""
        return self.mixer.norm(read, gate)

    def compute(self, hidden: Tensor, step: RecurrentStep) -> Tensor:
        mixer = self.mixer
        sizes = [mixer.intermediate_size, mixer.conv_dim, mixer.num_heads]
        gate, mixed, times = self.project(hidden).split(sizes, dim=1)
        found = step.recur(self, [mixed, times])
        return mixer.out_proj(self.gated(found, gate).to(hidden.dtype))

    def begin(self, like: Tensor) -> State:
        mixer = self.mixer
        inputs = like.new_zeros(mixer.conv_kernel_size - 1, mixer.conv_dim)
        return inputs, like.new_zeros(mixer.num_heads, mixer.ssm_state_size, mixer.head_dim, dtype=torch.float32)

    def run(self, rows: StateRows, inputs: Sequence[Tensor]) -> Tensor:
        mixer, (mixed, times) = self.mixer, inputs
        convolved = mixer.act(rows.convolve(mixed, mixer.conv1d))
        size = mixer.n_groups * mixer.ssm_state_size
        value, key, query = (part.float() for part in convolved.split([mixer.intermediate_size, size, size], dim=1))
        keys, queries = (part.unflatten(1, (mixer.n_groups, -1)) for part in (key, query))
        values = value.unflatten(1, (mixer.num_heads, -1))
        times = softplus(times + mixer.dt_bias).clamp(*mixer.time_step_limit).float()
        found = rows.read(queries, keys, values * times[..., None], -mixer.A_log.float().exp() * times)
        return (found + values * mixer.D[:, None]).flatten(1)


class ScaledMamba2(Mamba2):
    """A layer that has factors before and after the projection, and may have no norm, as in Falcon-H1."""

    def project(self, hidden: Tensor) -> Tensor:
        return self.mixer.in_proj(hidden * self.mixer.ssm_in_multiplier) * self.mixer.mup_vector[0]

    def gated(self, read: Tensor, gate: Tensor) -> Tensor:
        return self.mixer.norm(read, gate) if self.mixer.mamba_rms_norm else read * silu(gate)
