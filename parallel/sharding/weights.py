"""Loads a part of a model: the model is built without memory for weights, then filled with what this rank holds.

Modules that the rank does not hold are removed from the empty model first. Of a parameter that it holds in part, only
its shard is read. Knows nothing of how the model is split among ranks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel

from lp.model.errors import CheckpointError
from lp.model.gguf import linked_file
from lp.model.quantization import model as whole
from lp.model.weight_files import Matrices, Shard, WeightFiles

if TYPE_CHECKING:  # it needs the package gguf
    from lp.model.quantization.gguf_file import GgufFile


def empty_model(config: PreTrainedConfig, dtype: torch.dtype) -> PreTrainedModel:
    """A model whose parameters have shapes but no memory.

    Raises CheckpointError for quantized weights, as they have other tensors than the model's.
    """
    if getattr(config, "quantization_config", None) is not None:
        raise CheckpointError(
            "the checkpoint is quantized, and such weights cannot be read in parts: use a checkpoint that is not "
            "quantized, or parallel=lp, or parallel=single"
        )
    return whole.empty_model(config, dtype)


def fill(
    model: PreTrainedModel,
    path: str,
    dtype: torch.dtype,
    device: torch.device,
    shards: Mapping[str, Shard] | None = None,
) -> None:
    """Gives every parameter of an empty model memory and content.

    path: folder or hub id. shards: by the parameter's name, the shard to read; parameters not named are read whole.
    Raises CheckpointError.
    """
    shards = shards or {}
    read: dict[tuple[str | Matrices, Shard | None], Tensor] = {}
    with _open(path, model) as files:
        keys = _keys(model, files)
        for name, tensor in list(model.state_dict().items()):
            wanted = keys[name], shards.get(name)
            if wanted not in read:
                read[wanted] = _read(files, wanted[0], tensor.shape, wanted[1], dtype, device)
            _assign(model, name, read[wanted])
    _tie(model)
    nn.Module.to(model, device)  # computed buffers


def name_of(model: nn.Module, module: nn.Module) -> str:
    """The module's dotted name within the model."""
    return next(name for name, candidate in model.named_modules() if candidate is module)


def _read(
    files: WeightFiles | GgufFile, key: str | Matrices, expected: torch.Size, shard: Shard | None, dtype: torch.dtype,
    device: torch.device,
) -> Tensor:  # fmt: skip
    """See WeightFiles.read."""
    if isinstance(files, WeightFiles):
        return files.read(key, expected, shard, dtype, device)
    assert isinstance(key, str), "a GGUF file that is read in parts has the model's own tensors"
    return files.read(key, expected, shard, dtype, device)


def _open(path: str, model: PreTrainedModel) -> WeightFiles | GgufFile:
    """The weights of a checkpoint, or of the GGUF file of which its folder was made."""
    if (file := linked_file(path)) is None:
        return WeightFiles(path)
    from lp.model.quantization.gguf_file import GgufFile  # it needs the package gguf

    return GgufFile(file, model.config)


def _keys(model: PreTrainedModel, files: WeightFiles | GgufFile) -> dict[str, str | Matrices]:
    """The name in the files of each parameter of the model. The files may contain either of two tied parameters."""
    names: dict[str, str | Matrices] = {**files.names(model)}
    ties = model.all_tied_weights_keys.items()
    for name, twin in [*ties, *((source, target) for target, source in ties)]:
        if name not in names and twin in names:
            names[name] = names[twin]
    missing = [name for name in model.state_dict() if name not in names]
    if missing:
        raise CheckpointError(
            f"the weights of {files.path!r} have no tensor {missing[0]}. Reading them in parts needs a tensor for "
            "each of the model's parameters; use parallel=lp or parallel=single, which read everything that "
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
    """Makes two tied parameters share their memory if this rank holds both. As in transformers, they stay separate if
    their values differ.
    """
    held = dict(model.named_parameters(remove_duplicate=False))
    for target, source in model.all_tied_weights_keys.items():
        if target in held and source in held and torch.equal(held[target], held[source]):
            _assign(model, target, held[source])
