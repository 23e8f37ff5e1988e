"""The tensors of a checkpoint in safetensors files, by name: read one at a time, whole or in part.

Only files with tensors that are asked for are opened, or fetched from the hub. Knows nothing of what they are read for.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import hf_hub_download
from huggingface_hub.errors import EntryNotFoundError
from safetensors import SafetensorError, safe_open
from torch import Tensor
from transformers import PreTrainedModel
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import (
    Concatenate,
    MergeModulelist,
    WeightConverter,
    WeightRenaming,
    rename_source_key,
)

from lp.model.errors import CheckpointError, one_line

# The dtypes of weights that are not quantised, as safetensors calls them.
FLOATING = {"F64", "F32", "F16", "BF16"}
_SINGLE, _INDEX = "model.safetensors", "model.safetensors.index.json"


@dataclass(frozen=True)
class Shard:
    """Parts of a tensor along the dimension `dim`, one behind the other."""

    dim: int
    ranges: tuple[range, ...]

    def bounds(self, shape: Sequence[int]) -> list[tuple[slice, ...]]:
        """Returns, for each part, one slice for each dimension of a tensor of that shape."""
        for one in self.ranges:
            assert 0 <= one.start < one.stop <= shape[self.dim], f"{self} is no part of {list(shape)}"
        before, after = (slice(None),) * self.dim, (slice(None),) * (len(shape) - self.dim - 1)
        return [(*before, slice(one.start, one.stop), *after) for one in self.ranges]

    def within(self, begin: int, end: int) -> Shard:
        """What the shard has of the tensor from `begin` up to `end` along `dim`."""
        cut = (range(max(one.start, begin) - begin, min(one.stop, end) - begin) for one in self.ranges)
        return Shard(self.dim, tuple(one for one in cut if len(one)))


@dataclass(frozen=True)
class Matrices:
    """The names in the files of the matrices of which a tensor of all experts consists: those of each of its parts, in
    the order of experts. Parts lie one behind the other along the outputs, or their outputs take turns.
    """

    parts: tuple[tuple[str, ...], ...]
    takes_turns: bool = False  # in GGUF files alone


@dataclass(frozen=True)
class Joined:
    """The names in the files of the tensors of which one consists, which lie one behind the other along its first
    dimension.
    """

    keys: tuple[str, ...]


# What a tensor of a model is in the files.
FileKey = str | Matrices | Joined


def names_of(key: FileKey) -> list[str]:
    """The names in the files of a tensor, or of its parts."""
    match key:
        case str():
            return [key]
        case Matrices():
            return [one for part in key.parts for one in part]
        case Joined():
            return [*key.keys]


def _numbers_in(key: str) -> list[int]:
    """The numbers in a name, by which the names of a layer's experts are in order."""
    return [*map(int, re.findall(r"\d+", key))]


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

    @property
    def keys(self) -> Collection[str]:
        """The names in the files of all tensors."""
        return self._file_of.keys()

    def names(self, model: PreTrainedModel, keys: Iterable[str] | None = None) -> dict[str, FileKey]:
        """The name in the files of each tensor, by the model's own name for it.

        The two differ where older versions of transformers saved a tensor under another name, and where the files have
        a matrix for each expert or several tensors for one. Tensors that transformers would compute in another way are
        left out. keys: the names in the files; None is all of them.
        """
        transforms = get_model_conversion_mapping(model)
        renamings = [transform for transform in transforms if isinstance(transform, WeightRenaming)]
        converters = [transform for transform in transforms if isinstance(transform, WeightConverter)]
        ties, prefix = model.all_tied_weights_keys, model.base_model_prefix
        own = dict.fromkeys([*model.state_dict(), *ties, *ties.values()], True)  # a rank may hold one of two tied ones
        renamed = {
            key: rename_source_key(key, renamings, converters, prefix, own)
            for key in (self.keys if keys is None else keys)
        }
        found: dict[str, FileKey] = {name: key for key, (name, part) in renamed.items() if part is None}
        for converter in converters:
            match converter.operations:
                case [MergeModulelist()] | [MergeModulelist(), Concatenate()]:
                    is_joined = False
                case [Concatenate(dim=0)]:
                    is_joined = True
                case _:
                    continue
            merged: dict[str, dict[str, list[str]]] = {}
            for key, (name, part) in renamed.items():
                if part in converter.source_patterns:
                    merged.setdefault(name, {}).setdefault(part, []).append(key)
            for name, by_part in merged.items():
                if len(by_part) == len(converter.source_patterns):
                    parts = [tuple(sorted(by_part[part], key=_numbers_in)) for part in converter.source_patterns]
                    found[name] = Joined(tuple(key for (key,) in parts)) if is_joined else Matrices(tuple(parts))
        return found

    def check_floating(self, key: FileKey) -> None:
        """Raises CheckpointError for numbers that mean nothing without scales."""
        for one in names_of(key):
            if (dtype := self._open(self._file_of[one]).get_slice(one).get_dtype()) not in FLOATING:
                raise CheckpointError(f"{one} is stored in {dtype}, without scales that are known here")

    def view(self, key: str) -> Tensor:
        """A tensor as it is, in the memory to which its file is mapped. Raises CheckpointError."""
        file = self._file_of[key]
        try:
            return self._open(file).get_tensor(key)
        except (OSError, SafetensorError, RuntimeError) as error:
            raise self._unreadable(file, error) from error

    def read(
        self, key: FileKey, expected: Sequence[int], shard: Shard | None, dtype: torch.dtype,
        device: torch.device,
    ) -> Tensor:  # fmt: skip
        """A tensor, or a shard of it, in memory of its own. A tensor that is not of floating point keeps its dtype.

        expected: shape of the whole tensor. Raises CheckpointError if the shape is another, or the tensor cannot be
        read.
        """
        if isinstance(key, Matrices):
            return self._read_experts(key, expected, shard, dtype, device)
        if isinstance(key, Joined):
            return self._read_joined(key, expected, shard, dtype, device)
        views = self._views(key, expected, shard)  # they may keep the whole file mapped, so they are copied
        dtype = dtype if views[0].is_floating_point() else views[0].dtype
        sizes = list(views[0].shape)
        if shard is not None:
            sizes[shard.dim] = sum(map(len, shard.ranges))
        whole = torch.empty(sizes, dtype=dtype, device=device)
        if shard is None:
            return whole.copy_(views[0])
        for place, view in zip(whole.split([*map(len, shard.ranges)], shard.dim), views, strict=True):
            place.copy_(view)
        return whole

    def _read_experts(
        self, matrices: Matrices, expected: Sequence[int], shard: Shard | None, dtype: torch.dtype,
        device: torch.device,
    ) -> Tensor:  # fmt: skip
        """[experts, outputs, inputs]. shard: of outputs or inputs."""
        num_experts, num_outputs, num_inputs = expected
        height = num_outputs // len(matrices.parts)
        parts = []
        for number, keys in enumerate(matrices.parts):
            if len(keys) != num_experts:
                raise CheckpointError(
                    f"the weights of {self.path!r} do not fit its config.json: there are {len(keys)} experts as "
                    f"{keys[0]}, not {num_experts}"
                )
            own = shard.within(number * height, (number + 1) * height) if shard and shard.dim == 1 else shard
            of_one = Shard(own.dim - 1, own.ranges) if own else None
            read = [self.read(key, (height, num_inputs), of_one, dtype, device) for key in keys]
            parts.append(torch.stack(read))
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)

    def _read_joined(
        self, joined: Joined, expected: Sequence[int], shard: Shard | None, dtype: torch.dtype, device: torch.device
    ) -> Tensor:
        whole = torch.cat([self.view(key).to(dtype) for key in joined.keys])
        if tuple(whole.shape) != tuple(expected):
            raise self._misshapen(", ".join(joined.keys), whole.shape, expected)
        if shard is not None:
            whole = torch.cat([whole[bounds] for bounds in shard.bounds(expected)], dim=shard.dim)
        return whole.to(device)

    def _views(self, key: str, expected: Sequence[int], shard: Shard | None) -> list[Tensor]:
        part = self._open(self._file_of[key]).get_slice(key)
        if tuple(part.get_shape()) != tuple(expected):
            raise self._misshapen(key, part.get_shape(), expected)
        return [part[...]] if shard is None else [part[bounds] for bounds in shard.bounds(expected)]

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

    def _misshapen(self, key: str, found: Sequence[int], expected: Sequence[int]) -> CheckpointError:
        return CheckpointError(
            f"the weights of {self.path!r} do not fit its config.json: {key} has shape {list(found)}, not "
            f"{list(expected)}"
        )

    def _unreadable(self, file: str, error: Exception) -> CheckpointError:
        return CheckpointError(f"{file} of {self.path!r} cannot be read: {one_line(error)}; copy or download it again")
