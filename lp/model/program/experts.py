"""The experts of a mixture, as a model's forward sees them while it is recorded.

transformers lets a model's experts be computed by a function that is registered by name. This one records, for each
row and each expert that the row is sent to, what the expert computes.

R rows, C experts for each row, E experts, D hidden size, I inner size
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import reduce
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

from lp.model.program.record import recorder
from lp.model.quantization.parameter import QuantizedParameter

NAME = "recorded"


@contextmanager
def recorded_experts(model: PreTrainedModel) -> Iterator[None]:
    """Has a model's experts recorded. Nothing changes for a model without experts."""
    before = getattr(model.config.get_text_config(decoder=True), "_experts_implementation", None)
    if before is None:
        yield
        return
    ALL_EXPERTS_FUNCTIONS.register(NAME, _record)
    model.set_experts_implementation(NAME)
    try:
        yield
    finally:
        model.set_experts_implementation(before)


def _record(module: Any, hidden: Tensor, experts: Tensor, weights: Tensor) -> Tensor:
    """hidden [R, D], experts and their weights [R, C] -> [R, D]."""
    active = recorder()
    assert active is not None, "this function is registered for the recording alone"

    def product(x: Tensor, name: str) -> Tensor:
        """x [R, D] or [R, C, D], weight of all experts [E, N, D], or [E, D, N] if it is transposed -> [R, C, N]."""
        parameter = module.get_parameter(name).detach()
        if isinstance(parameter, QuantizedParameter):
            weight = parameter.quantized
        else:
            weight = parameter if module.is_transposed else parameter.transpose(1, 2)
        bias = [module.get_parameter(f"{name}_bias").detach()] if module.has_bias else []
        shape = *experts.shape, parameter.shape[2 if module.is_transposed else 1]
        return active.note("expert_product", (x, experts, weight, *bias), shape, x.dtype)

    if module.has_gate:
        inner = module._apply_gate(product(hidden, "gate_up_proj"))
    else:
        inner = module.act_fn(product(hidden, "up_proj"))
    answers = product(inner, "down_proj")
    if hasattr(module, "post_expert_norm"):  # a flag says so as well, but not in all versions of transformers
        answers = module.post_expert_norm(answers)
    # One by one: such a sum is computed where it is read.
    weighted = [answers[:, choice] * weights[:, choice, None] for choice in range(experts.shape[1])]
    return reduce(torch.add, weighted).to(hidden.dtype)
