"""Transformers' eager attention in a wider number format, rounded at its end.

It computes what eager attention does with other rounding errors, as sdpa does where a model supports that. It is for
models that transformers computes by eager attention alone.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface, eager_mask

NAME = "wider_eager"


def wider_attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **others: Any
) -> tuple[Tensor, None]:
    """Calls the eager attention of the module's own file, in float64 for float32 and in float32 for 16 bits."""
    eager = vars(sys.modules[type(module).__module__])["eager_attention_forward"]
    wider = torch.float64 if query.dtype == torch.float32 else torch.float32
    mask = None if attention_mask is None else attention_mask.to(wider)
    out, _ = eager(module, query.to(wider), key.to(wider), value.to(wider), mask, **others)
    return out.to(query.dtype), None


def register() -> None:
    """Registers this attention with transformers under `NAME`. A second call changes nothing."""
    AttentionInterface.register(NAME, wider_attention)
    AttentionMaskInterface.register(NAME, eager_mask)
