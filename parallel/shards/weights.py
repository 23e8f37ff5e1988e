"""A part of a model: built from its configuration without memory for weights, then filled with what this rank holds.

What a rank does not hold at all is taken out of the empty model first; of what it holds in part, a stretch is read.
Knows nothing of why a rank holds what it holds.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from accelerate import init_empty_weights
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from lp.model.checkpoint_info import CheckpointError
from parallel.shards.weight_files import Shard, WeightFiles


def empty_model(config: PreTrainedConfig, dtype: torch.dtype) -> PreTrainedModel:
    """Its parameters have shapes but no memory; buffers that are computed (rotary embeddings) are there.

    Raises CheckpointError for quantized weights, which are more than tensors of the model's shapes.
    """
    if getattr(config, "quantization_config", None) is not None:
        raise CheckpointError(
            "the checkpoint is quantized, and a part of such weights cannot be read: use one that is not, or "
            "parallel=lp, or parallel=single"
        )
    with init_empty_weights(include_buffers=False):
        return AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation="eager").eval()


def fill(
    model: PreTrainedModel,
    path: str,
    dtype: torch.dtype,
    device: torch.device,
    shards: Mapping[str, Shard] | None = None,
) -> None:
    """Gives every parameter of an empty model its memory and content.

    path: folder or hub id. shards: what is held of the tensors that are not held whole, by the parameter's name.
    Raises CheckpointError.
    """
    shards = shards or {}
    read: dict[tuple[str, Shard | None], Tensor] = {}
    with WeightFiles(path) as files:
        keys = _keys(model, files)
        for name, tensor in list(model.state_dict().items()):
            wanted = keys[name], shards.get(name)
            if wanted not in read:
                read[wanted] = files.read(wanted[0], tensor.shape, wanted[1], dtype, device)
            _assign(model, name, read[wanted])
    _tie(model)
    nn.Module.to(model, device)  # computed buffers


def num_weight_bytes(model: nn.Module) -> int:
    """Bytes of all parameters, shared memory once; of an empty model, the bytes that they will have."""
    storages = {p.untyped_storage().data_ptr() or id(p): p.untyped_storage().nbytes() for p in model.parameters()}
    return sum(storages.values())


def name_of(model: nn.Module, module: nn.Module) -> str:
    """The module's dotted name within the model."""
    return next(name for name, candidate in model.named_modules() if candidate is module)


def _keys(model: PreTrainedModel, files: WeightFiles) -> dict[str, str]:
    """The name in the files of each parameter that this rank holds; of two tied ones, the files may have either."""
    names = files.names(model)
    ties = model.all_tied_weights_keys.items()
    for name, twin in [*ties, *((source, target) for target, source in ties)]:
        if name not in names and twin in names:
            names[name] = names[twin]
    missing = [name for name in model.state_dict() if name not in names]
    if missing:
        raise CheckpointError(
            f"the weights of {files.path!r} have no tensor {missing[0]}. Where every rank reads a part of them, there "
            "must be one for each of the model's parameters; parallel=lp and parallel=single read all that "
            "transformers can convert"
        )
    return names


def _assign(model: nn.Module, name: str, content: Tensor) -> None:
    owner, _, last = name.rpartition(".")
    module = model.get_submodule(owner)
    if last in module._parameters:
        is_shared = isinstance(content, nn.Parameter)
        setattr(module, last, content if is_shared else nn.Parameter(content, requires_grad=False))
    else:
        setattr(module, last, content)


def _tie(model: PreTrainedModel) -> None:
    """Makes tied parameters one again where this rank holds both. As in transformers, those that differ stay two."""
    held = dict(model.named_parameters(remove_duplicate=False))
    for target, source in model.all_tied_weights_keys.items():
        if target in held and source in held and torch.equal(held[target], held[source]):
            _assign(model, target, held[source])
