"""Reads heads for a model that is ready to run."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from torch.nn.functional import linear

from lp.model.causal import CausalModel
from lp.model.errors import CheckpointError
from lp.model.heads.files import load_heads
from lp.model.heads.hidden import can_give_hidden, output_of
from lp.model.heads.loaded import LoadedHeads
from lp.model.heads.medusa import HeadsInfo, Output


def attach_heads(model: CausalModel, folder: Path, info: HeadsInfo) -> None:
    """Gives a model its heads, before `free_weights`. Raises CheckpointError.

    Heads that end in the model's output embedding keep it where the compiled forward has copies of all weights.
    """
    if not can_give_hidden(model.fast):
        raise CheckpointError(
            f"model.heads={str(folder)!r}: the compiled forward of {type(model.model).__name__} gives no hidden "
            "states; use model.compile=off, or model.heads=off"
        )
    module = output_of(model.model)
    output: Output = module
    if info.shares_output and model.fast is not None and model.fast.owns_weights:
        weights = {name: weight.detach() for name, weight in module.named_parameters()}
        output = partial(linear, **weights)
    model.heads = LoadedHeads(load_heads(folder, info, model.dtype, model.device), output)
