"""The forward on a CPU as a function of tensors alone, which can be compiled ahead of time.

Sequences, their caches and masks change from step to step. So attention is one operator, into which a compiler need not
look: it is given the step's number, by which it finds the step that is under way.

    R rows, N of them with logits, V vocabulary
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from lp.kv_cache.cache import RowsOnly
from lp.model.attention import Step
from lp.model.kernels import AttentionKind, LayerAttention

_LIBRARY = torch.library.Library("lookahead", "DEF")
_LIBRARY.define(
    "step_attention(Tensor query, Tensor key, Tensor value, Tensor step, int layer, float scale, int? sliding_window, "
    "float? softcap) -> Tensor"
)
# The steps that compiled forwards are computing, by their numbers.
_UNDER_WAY: dict[int, Step] = {}
_NUMBERS = count()


@contextmanager
def under_way(step: Step) -> Iterator[Tensor]:
    """Lets a compiled forward find the step by the number that this yields: int64 []."""
    number = next(_NUMBERS)
    _UNDER_WAY[number] = step
    try:
        yield torch.tensor(number)
    finally:
        del _UNDER_WAY[number]


def _step_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    step: Tensor,
    layer: int,
    scale: float,
    sliding_window: int | None,
    softcap: float | None,
) -> Tensor:
    """See Step.attend. step: its number."""
    how = LayerAttention(scale, sliding_window, softcap)
    return _UNDER_WAY[int(step)].attend(layer, query, key, value, how)


_LIBRARY.impl("step_attention", _step_attention, "CompositeExplicitAutograd")


@torch.library.register_fake("lookahead::step_attention", lib=_LIBRARY)
def _shape_of_step_attention(query: Tensor, key: Tensor, value: Tensor, *others: object) -> Tensor:
    return query.new_empty(1, query.shape[2], query.shape[1], value.shape[3])


@dataclass(kw_only=True)
class TracedStep(Step):
    """A step that is known by its number alone, int64 []."""

    number: Tensor

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, how: LayerAttention) -> Tensor:
        return torch.ops.lookahead.step_attention(
            query, key, value, self.number, layer, how.scale, how.sliding_window, how.softcap
        )


class TracedForward(nn.Module):
    """A model's forward over a step's rows, whose inputs are all tensors."""

    def __init__(self, model: PreTrainedModel, kind: AttentionKind):
        super().__init__()
        self.model = model
        self.kind = kind
        self.num_layers: int = model.config.get_text_config(decoder=True).num_hidden_layers

    def forward(self, tokens: Tensor, positions: Tensor, answered: Tensor, number: Tensor) -> Tensor:
        """tokens, positions: [R] int64. answered: [N] the rows whose logits are needed. number: see `under_way`.
        Returns float32 logits [N, V].
        """
        output = self.model(
            input_ids=tokens[None],
            position_ids=positions[None],
            past_key_values=RowsOnly(self.num_layers),
            use_cache=True,
            logits_to_keep=answered,
            step=TracedStep(self.kind, number=number),
        )
        return output.logits[0].float()
