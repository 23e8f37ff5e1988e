"""Loads a part of a model: the model is built without memory for weights, then filled with what this rank holds.

Modules that the rank does not hold are removed from the empty model first. Of a parameter that it holds in part, only
its shard is read. On a CPU quantised weights stay packed, and so do their shards. Knows nothing of how the model is
split among ranks.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, TypeAlias

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel

from lp.model.errors import CheckpointError
from lp.model.gguf import linked_file
from lp.model.quantization.checkpoints import QuantizedFiles
from lp.model.quantization.experts import compute_quantized
from lp.model.quantization.files import FilesOfQuantized
from lp.model.quantization.methods import find_method
from lp.model.quantization.model import as_parameter, takes_quantized
from lp.model.quantization.parameter import QuantizedParameter
from lp.model.quantization.part import UnevenCut
from lp.model.quantization.quantize import QuantizingFiles, Weights
from lp.model.quantization.weight import GROUP, summary
from lp.model.weight_files import FileKey, Shard, WeightFiles
from lp.platform.hardware import dtype_name

if TYPE_CHECKING:  # it needs the package gguf
    from lp.model.quantization.gguf_file import GgufFile

log = logging.getLogger("lookahead")

# All but the first read quantised weights packed (`quantized`) or unpacked (`read`).
Files: TypeAlias = "WeightFiles | GgufFile | FilesOfQuantized"


def fill(
    model: PreTrainedModel,
    path: str,
    config: PreTrainedConfig,
    dtype: torch.dtype,
    device: torch.device,
    shards: Mapping[str, Shard] | None = None,
    weights: Weights = Weights.auto,
) -> None:
    """Gives every parameter of an empty model memory and content.

    path: folder or hub id. config: the checkpoint's. shards: by the parameter's name, the shard to read; parameters not
    named are read whole. Raises CheckpointError.
    """
    shards = shards or {}
    read: dict[tuple[FileKey, Shard | None], Tensor] = {}
    uneven: list[str] = []
    with _open(path, config, weights) as files:
        keys = _keys(model, files)
        for name, tensor in list(model.state_dict().items()):
            wanted = keys[name], shards.get(name)
            if wanted not in read:
                found = None
                if device.type == "cpu" and takes_quantized(model, name):
                    try:
                        found = _packed(model, name, files, *wanted, tensor.shape, dtype)
                    except UnevenCut:
                        uneven.append(name)
                read[wanted] = files.read(wanted[0], tensor.shape, wanted[1], dtype, device) if found is None else found
            _assign(model, name, read[wanted])
    _tie(model)
    nn.Module.to(model, device)  # computed buffers
    compute_quantized(model)
    if packed := [one.quantized for one in read.values() if isinstance(one, QuantizedParameter)]:
        log.info("quantised weights of this rank: %s", summary(packed))
    if uneven:
        log.warning(
            "%s%s unpacked to %s: what this rank holds of the inputs does not begin and end at multiples of %d; with "
            "another parallel.tp, or with parallel=lp, quantised weights stay packed",
            uneven[0],
            f" and {len(uneven) - 1} other weights are" if len(uneven) > 1 else " is",
            dtype_name(dtype),
            GROUP,
        )


def name_of(model: nn.Module, module: nn.Module) -> str:
    """The module's dotted name within the model."""
    return next(name for name, candidate in model.named_modules() if candidate is module)


def has_quantized(path: str, config: PreTrainedConfig, weights: Weights) -> bool:
    """Whether weights of a checkpoint are quantised, or will be, as far as can be said before they are read."""
    return weights is not Weights.auto or linked_file(path) is not None or find_method(config) is not None


def _packed(
    model: nn.Module, name: str, files: Files, key: FileKey, shard: Shard | None, expected: torch.Size,
    dtype: torch.dtype,
) -> nn.Parameter | None:  # fmt: skip
    """A model's parameter of this name whose weight is quantised; None for one that is not. Raises UnevenCut."""
    weight = None if isinstance(files, WeightFiles) else files.quantized(key, expected, shard, dtype)
    if weight is None:
        return None
    return as_parameter(model, name, weight, torch.device("cpu"))


def _open(path: str, config: PreTrainedConfig, weights: Weights) -> Files:
    """The weights of a checkpoint, or of the GGUF file of which its folder was made."""
    if weights is not Weights.auto:
        return QuantizingFiles(path, weights)
    if (method := find_method(config)) is not None:
        return QuantizedFiles(path, method)
    if (file := linked_file(path)) is None:
        return WeightFiles(path)
    from lp.model.quantization.gguf_file import GgufFile  # it needs the package gguf

    return GgufFile(file, config)


def _keys(model: PreTrainedModel, files: Files) -> dict[str, FileKey]:
    """The name in the files of each parameter of the model. The files may contain either of two tied parameters."""
    names: dict[str, FileKey] = {**files.names(model)}
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
        pair = [held[name] for name in (target, source) if name in held]
        if any(isinstance(one, QuantizedParameter) for one in pair):  # they have been read once, or differ
            continue
        if len(pair) == 2 and torch.equal(*pair):
            _assign(model, target, held[source])
