"""Makes a model without weights, by which a configuration alone shows what the forward does.

Large weights have shapes and no memory: products with them, and lookups in them, can be recorded and not computed.
"""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel

from lp.model.quantization.experts import is_transposed
from lp.model.quantization.joined import QuantizedExperts
from lp.model.quantization.model import empty_model, fill
from lp.model.quantization.quantize import UnquantizedWeight, can_quantize
from lp.model.quantization.weight import QuantizedWeight

CPU = torch.device("cpu")


def weightless_model(config: PreTrainedConfig, dtype: torch.dtype) -> PreTrainedModel:
    """A model whose forward can be recorded (see lp/model/program/translate.py), and gives zeros."""
    model = empty_model(config, dtype)
    ties = model.all_tied_weights_keys
    fill(model, {name: _content(model, name) for name in model.state_dict() if name not in ties}, CPU)
    return model


def _content(model: PreTrainedModel, name: str) -> Tensor | QuantizedWeight:
    """What stands for a parameter or a buffer. Buffers have been computed already."""
    empty = model.state_dict()[name]
    if not empty.is_meta:
        return empty
    if not can_quantize(model, name):
        return torch.zeros(empty.shape, dtype=empty.dtype)
    *num_experts, num_outputs, num_inputs = empty.mT.shape if is_transposed(model, name) else empty.shape
    weight = UnquantizedWeight(torch.zeros((), dtype=empty.dtype).expand(num_outputs, num_inputs), empty.dtype)
    return QuantizedExperts([weight] * num_experts[0]) if num_experts else weight
