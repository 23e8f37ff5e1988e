"""Gated DeltaNet (arXiv 2412.06464): each token replaces what the matrix says of its key by its own value.

see base.py; H heads of values, which may be several for each head of keys
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus
from transformers.activations import ACT2FN

from lp.kv_cache.recurrent import State
from lp.model.recurrent.base import RecurrentLayer, RecurrentStep, StateRows


class Projected(NamedTuple):
    """mixed: [R, C] queries, keys and values before the convolution. gate: [R, H * E]. rates, times: [R, H]."""

    mixed: Tensor
    gate: Tensor
    rates: Tensor
    times: Tensor


class GatedDeltaNet(RecurrentLayer):
    """Its state is the last inputs of the convolution [K - 1, C] and the matrix [H, D, E]. With one projection for
    queries, keys and values, as in Qwen3.5.
    """

    def __init__(self, mixer: nn.Module, index: int):
        super().__init__(mixer, index)
        self.activate = ACT2FN[self.mixer.activation]

    def project(self, hidden: Tensor) -> Projected:
        mixer = self.mixer
        return Projected(
            mixer.in_proj_qkv(hidden), mixer.in_proj_z(hidden), mixer.in_proj_b(hidden).sigmoid(),
            mixer.in_proj_a(hidden),
        )  # fmt: skip

    def finish(self, read: Tensor, gate: Tensor) -> Tensor:
        """read, gate: [R, H, E]."""
        return self.mixer.out_proj(self.mixer.norm(read, gate).flatten(1))

    def compute(self, hidden: Tensor, step: RecurrentStep) -> Tensor:
        mixed, gate, rates, times = self.project(hidden)
        logs = -self.mixer.A_log.float().exp() * softplus(times.float() + self.mixer.dt_bias)
        found = step.recur(self, [mixed, logs, rates])
        return self.finish(found, gate.view(found.shape))

    def begin(self, like: Tensor) -> State:
        mixer = self.mixer
        inputs = like.new_zeros(mixer.conv_kernel_size - 1, mixer.conv_dim)
        return inputs, like.new_zeros(mixer.num_v_heads, mixer.head_k_dim, mixer.head_v_dim, dtype=torch.float32)

    def run(self, rows: StateRows, inputs: Sequence[Tensor]) -> Tensor:
        mixer, (mixed, logs, rates) = self.mixer, inputs
        convolved = self.activate(rows.convolve(mixed, mixer.conv1d))
        sizes = [mixer.key_dim, mixer.key_dim, mixer.value_dim]
        query, key, value = (part.float() for part in convolved.split(sizes, dim=1))
        queries = _normalised(query.unflatten(1, (mixer.num_k_heads, -1))) * mixer.head_k_dim**-0.5
        keys = _normalised(key.unflatten(1, (mixer.num_k_heads, -1)))
        values = value.unflatten(1, (mixer.num_v_heads, -1))
        return rows.read(queries, keys, values, logs, rates).to(mixed.dtype)


class InterleavedDeltaNet(GatedDeltaNet):
    """A layer whose projections group their outputs by heads of keys, as in Qwen3-Next."""

    def project(self, hidden: Tensor) -> Projected:
        mixer = self.mixer
        query, key, value, gate, rates, times = mixer.fix_query_key_value_ordering(
            mixer.in_proj_qkvz(hidden[None]), mixer.in_proj_ba(hidden[None])
        )
        mixed = torch.cat([part[0].flatten(1) for part in (query, key, value)], dim=1)
        return Projected(mixed, gate[0], rates[0].sigmoid(), times[0])


class SeparateDeltaNet(GatedDeltaNet):
    """A layer that has a projection for each input, as in OLMo Hybrid."""

    def project(self, hidden: Tensor) -> Projected:
        mixer = self.mixer
        mixed = torch.cat([mixer.q_proj(hidden), mixer.k_proj(hidden), mixer.v_proj(hidden)], dim=1)
        rates = mixer.b_proj(hidden).sigmoid()
        return Projected(
            mixed, mixer.g_proj(hidden), rates * 2.0 if mixer.allow_neg_eigval else rates, mixer.a_proj(hidden)
        )

    def finish(self, read: Tensor, gate: Tensor) -> Tensor:
        return self.mixer.o_proj(self.mixer.o_norm(read, gate).flatten(1))


def _normalised(vectors: Tensor) -> Tensor:
    return vectors * torch.rsqrt((vectors * vectors).sum(dim=-1, keepdim=True) + 1e-6)
