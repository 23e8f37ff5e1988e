"""Runs a model on a few rows and returns its program."""

from __future__ import annotations

import torch

from lp.kv_cache.cache import LayerShape, RowsOnly
from lp.model.attention import Step
from lp.model.causal import CausalModel
from lp.model.current_step import running
from lp.model.program.experts import recorded_experts
from lp.model.program.lower import Lowering
from lp.model.program.record import RecordedStep, Recorder, Recording
from lp.model.program.steps import Keep, Program

# Rows of two recordings, which differ in tokens and positions, too. What both become must be the same.
FEW_ROWS, MORE_ROWS = 5, 7


def translate(model: CausalModel, num_rows: int) -> Program:
    """Raises Inexpressible for a model that is no program over rows."""
    return Lowering(_record(model, num_rows)).run()


def cache_shapes(program: Program) -> dict[int, LayerShape]:
    """The shapes of keys and values of the layers that have some of their own."""
    kept = [step for step in program.steps if isinstance(step, Keep)]
    value_dims = {step.layer: step.head_dim for step in kept if not step.is_key}
    keys = sorted((step for step in kept if step.is_key), key=lambda step: step.layer)
    return {step.layer: LayerShape(step.num_heads, step.head_dim, value_dims.get(step.layer, 0)) for step in keys}


def find_shapes(model: CausalModel) -> dict[int, LayerShape]:
    """The shapes of keys and values of the layers that are held, found without computing attention or quantised
    products.
    """
    shapes = {}
    for operation in _record(model, FEW_ROWS).operations:
        if operation.name == "attention":
            _, key, value, layer, _ = operation.args
            shapes[layer] = LayerShape(key.shape[1], key.shape[3], value.shape[3])
    return shapes


def find_step(model: CausalModel) -> Step:
    """A step without attention, which lists the layers that have called it."""
    return _record(model, FEW_ROWS).step


def _record(model: CausalModel, num_rows: int) -> Recording:
    """Runs the model on `num_rows` rows without attention, and records what it does."""
    recorder = Recorder()
    tokens = torch.arange(num_rows, device=model.device) + num_rows
    positions = torch.arange(num_rows, device=model.device) * num_rows % model.max_length
    incoming = None
    if not model.is_first_stage:
        incoming = torch.zeros(1, num_rows, model.hidden_size, dtype=model.dtype, device=model.device)
    step = RecordedStep(model.attention_kind, incoming, recorder=recorder, of_rows=positions)
    with torch.inference_mode(False), torch.no_grad(), recorded_experts(model.model), running(step), recorder:
        answer = model.model(
            input_ids=tokens[None],
            position_ids=positions[None],
            past_key_values=RowsOnly(model.num_layers, positions),
            use_cache=False,
        )
    output = answer.logits if model.is_last_stage else step.outgoing
    assert output is not None, "a stage before the last hands hidden states on"
    own = recorder.operations, recorder.changed, model.dtype, step
    return Recording(tokens, positions, output, *own, incoming, model.is_last_stage)
