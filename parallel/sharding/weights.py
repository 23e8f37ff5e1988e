"""Loads a part of a model: the model is built without memory for weights, then filled with what this rank holds.

Modules that the rank does not hold are removed from the empty model first. Of a parameter that it holds in part, only
its shard is read. Safetensors files are read one tensor at a time, and only those with tensors that are asked for are
opened, or fetched from the hub. Knows nothing of how the model is split among ranks.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from accelerate import init_empty_weights
from huggingface_hub import hf_hub_download
from huggingface_hub.errors import EntryNotFoundError
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import WeightConverter, WeightRenaming, rename_source_key

from lp.model.errors import CheckpointError


def empty_model(config: PreTrainedConfig, dtype: torch.dtype) -> PreTrainedModel:
    """A model whose parameters have shapes but no memory. Computed buffers (rotary embeddings) are there.

    Raises CheckpointError for quantized weights, as they have other tensors than the model's.
    """
    if getattr(config, "quantization_config", None) is not None:
        raise CheckpointError(
            "the checkpoint is quantized, and such weights cannot be read in parts: use a checkpoint that is not "
            "quantized, or parallel=lp, or parallel=single"
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
    """Gives every parameter of an empty model memory and content.

    path: folder or hub id. shards: by the parameter's name, the shard to read; parameters not named are read whole.
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


def name_of(model: nn.Module, module: nn.Module) -> str:
    """The module's dotted name within the model."""
    return next(name for name, candidate in model.named_modules() if candidate is module)


def _keys(model: PreTrainedModel, files: WeightFiles) -> dict[str, str]:
    """The name in the files of each parameter of the model. The files may contain either of two tied parameters."""
    names = files.names(model)
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


_SINGLE, _INDEX = "model.safetensors", "model.safetensors.index.json"


@dataclass(frozen=True)
class Shard:
    """The part of a tensor from `begin` up to `end` along the dimension `dim`."""

    dim: int
    begin: int
    end: int

    def bounds(self, shape: Sequence[int]) -> tuple[slice, ...]:
        """One slice for each dimension of a tensor of that shape."""
        assert 0 <= self.begin < self.end <= shape[self.dim], f"{self} is not a part of {list(shape)}"
        along = slice(self.begin, self.end)
        return tuple(along if dim == self.dim else slice(None) for dim in range(len(shape)))


class WeightFiles:
    """The tensors of a checkpoint, by name. It is a context manager, as it keeps files open."""

    def __init__(self, path: str) -> None:
        """path: folder or hub id. Raises CheckpointError."""
        self.path = path
        self._stack = ExitStack()
        self._opened: dict[str, Any] = {}
        self._file_of = self._list_tensors()

    def __enter__(self) -> WeightFiles:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def names(self, model: PreTrainedModel) -> dict[str, str]:
        """The name in the files of each tensor, by the model's own name for it.

        The two differ where older versions of transformers saved a tensor under another name. Tensors are left out if
        transformers would compute them from several others, such as the experts of a layer joined into one.
        """
        transforms = get_model_conversion_mapping(model)
        renamings = [transform for transform in transforms if isinstance(transform, WeightRenaming)]
        converters = [transform for transform in transforms if isinstance(transform, WeightConverter)]
        ties, prefix = model.all_tied_weights_keys, model.base_model_prefix
        own = dict.fromkeys([*model.state_dict(), *ties, *ties.values()], True)  # a rank may hold one of two tied ones
        renamed = {key: rename_source_key(key, renamings, converters, prefix, own) for key in self._file_of}
        return {name: key for key, (name, converter) in renamed.items() if converter is None}

    def read(
        self, key: str, expected: Sequence[int], shard: Shard | None, dtype: torch.dtype, device: torch.device
    ) -> Tensor:
        """A tensor, or a shard of it, in memory of its own. A tensor that is not of floating point keeps its dtype.

        expected: shape of the whole tensor. Raises CheckpointError if the shape is another, or the tensor cannot be
        read.
        """
        part = self._open(self._file_of[key]).get_slice(key)
        if tuple(part.get_shape()) != tuple(expected):
            raise CheckpointError(
                f"the weights of {self.path!r} do not fit its config.json: {key} has shape {list(part.get_shape())}, "
                f"not {list(expected)}"
            )
        view = part[shard.bounds(expected) if shard else ...]  # it may keep the whole file mapped, so it is copied
        dtype = dtype if view.is_floating_point() else view.dtype
        return torch.empty(view.shape, dtype=dtype, device=device).copy_(view)

    def _list_tensors(self) -> dict[str, str]:
        """The file of each tensor: a single file has them all, or an index lists the file of each."""
        if self._has(_SINGLE):
            return dict.fromkeys(self._open(_SINGLE).keys(), _SINGLE)
        try:
            return dict(json.loads(self._locate(_INDEX).read_text(encoding="utf-8"))["weight_map"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise self._unreadable(_INDEX, error) from error

    def _has(self, file: str) -> bool:
        try:
            return self._locate(file).exists()
        except EntryNotFoundError:
            return False
        except OSError as error:
            raise self._unreadable(file, error) from error

    def _open(self, file: str) -> Any:
        if file not in self._opened:
            try:
                self._opened[file] = self._stack.enter_context(safe_open(self._locate(file), framework="pt"))
            except (OSError, SafetensorError) as error:
                raise self._unreadable(file, error) from error
        return self._opened[file]

    def _locate(self, file: str) -> Path:
        """The path of a file: in the folder, or in the hub's cache, into which it is fetched if it is missing."""
        folder = Path(self.path)
        return folder / file if folder.is_dir() else Path(hf_hub_download(self.path, file))

    def _unreadable(self, file: str, error: Exception) -> CheckpointError:
        reason = " ".join(str(error).split())[:300]
        return CheckpointError(f"{file} of {self.path!r} cannot be read: {reason or type(error).__name__}")
