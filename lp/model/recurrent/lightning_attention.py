"""Lightning attention (arXiv 2501.08313): linear attention, each of whose heads decays at a rate of its own.

see base.py; H heads of D numbers
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from lp.kv_cache.recurrent import State
from lp.model.recurrent.base import RecurrentLayer, RecurrentStep, StateRows


class LightningAttention(RecurrentLayer):
    """Its state is the matrix [H, D, D]. It takes the place of an attention, so it returns weights as well: None."""

    def forward(self, hidden_states: Tensor, **others) -> tuple[Tensor, Tensor | None]:
        found = super().forward(hidden_states, **others)
        return found if isinstance(found, tuple) else (found, None)

    def compute(self, hidden: Tensor, step: RecurrentStep) -> Tensor:
        mixer = self.mixer
        found = step.recur(self, [mixer.act_fn(mixer.qkv_proj(hidden))])
        return mixer.out_proj(mixer.output_gate(hidden).sigmoid() * mixer.norm(found))

    def begin(self, like: Tensor) -> State:
        size = self.mixer.head_dim
        return (like.new_zeros(self.mixer.num_attention_heads, size, size, dtype=torch.float32),)

    def run(self, rows: StateRows, inputs: Sequence[Tensor]) -> Tensor:
        (projected,), num_heads = inputs, self.mixer.num_attention_heads
        queries, keys, values = projected.unflatten(1, (num_heads, -1)).float().chunk(3, dim=-1)
        logs = (-self.mixer.slope_rate.float()).view(1, num_heads).expand(len(projected), num_heads)
        return rows.read(queries, keys, values, logs).flatten(1).to(projected.dtype)
