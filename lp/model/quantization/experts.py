"""What a model's own forward computes with experts whose weights are quantised.

transformers lets a model's experts be computed by a function that is registered by name.

R rows, C experts for each row, E experts, D hidden size, N outputs, K inputs
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear
from transformers import PreTrainedModel
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

from lp.model.quantization.joined import QuantizedExperts
from lp.model.quantization.parameter import QuantizedParameter

NAME = "quantized"


def expert_weights(module: Any) -> set[str]:
    """The names of the weights of a layer's experts [E, N, K] or [E, K, N]; none for another module."""
    if not hasattr(module, "is_transposed"):
        return set()
    return {"gate_up_proj" if module.has_gate else "up_proj", "down_proj"}


def is_transposed(model: nn.Module, name: str) -> bool:
    """Whether a parameter of a model is of experts [E, K, N]."""
    owner, _, last = name.rpartition(".")
    module: Any = model.get_submodule(owner)
    return last in expert_weights(module) and module.is_transposed


def compute_quantized(model: PreTrainedModel) -> None:
    """Has a model's own forward compute with quantised experts, if it has any."""
    if any(isinstance(weight, QuantizedParameter) and weight.dim() == 3 for weight in model.parameters()):
        ALL_EXPERTS_FUNCTIONS.register(NAME, _compute)
        model.set_experts_implementation(NAME)


def _compute(module: Any, hidden: Tensor, experts: Tensor, weights: Tensor) -> Tensor:
    """hidden [R, D], experts and their weights [R, C] -> [R, D]."""
    answers = hidden.new_zeros(*experts.shape, hidden.shape[1])
    for expert in experts.unique().tolist():
        row, choice = torch.where(experts == expert)
        if module.has_gate:
            inner = module._apply_gate(_multiply(module, "gate_up_proj", expert, hidden[row]))
        else:
            inner = module.act_fn(_multiply(module, "up_proj", expert, hidden[row]))
        answers[row, choice] = _multiply(module, "down_proj", expert, inner)
    if hasattr(module, "post_expert_norm"):  # a flag says so as well, but not in all versions of transformers
        answers = module.post_expert_norm(answers)
    return (answers * weights[..., None]).sum(dim=1).to(hidden.dtype)


def _multiply(module: Any, name: str, expert: int, x: Tensor) -> Tensor:
    """x [n, K] -> [n, N] by one expert."""
    weight = module.get_parameter(name)
    if isinstance(weight, QuantizedParameter):
        numbers = _numbers(weight, expert).to(device=x.device, dtype=x.dtype)
    else:
        numbers = weight[expert].t() if module.is_transposed else weight[expert]
    return linear(x, numbers, module.get_parameter(f"{name}_bias")[expert] if module.has_bias else None)


def _numbers(weight: QuantizedParameter, expert: int) -> Tensor:
    """[N, K] of one expert."""
    quantized = weight.quantized
    assert isinstance(quantized, QuantizedExperts)
    if weight.unpacked is not None:
        return weight.unpacked.chunk(len(quantized.experts))[expert]
    return torch.cat([*quantized.experts[expert].dequantized()])


def unpack_experts(weight: QuantizedExperts, is_transposed: bool, device: torch.device) -> Tensor:
    """[E, N, K], or [E, K, N] if it is transposed, in the weight's dtype."""
    size = weight.num_outputs // len(weight.experts), weight.num_inputs
    whole = torch.empty(
        len(weight.experts), *(size[::-1] if is_transposed else size), dtype=weight.dtype, device=device
    )
    for own, expert in zip(whole, weight.experts, strict=True):
        numbers = torch.cat([*expert.dequantized()])
        own.copy_(numbers.t() if is_transposed else numbers)
    return whole
