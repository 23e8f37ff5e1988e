"""What all readers of a checkpoint whose weights are quantised, or are to be, have in common.

N outputs, K inputs, E experts
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Self

import torch
from torch import Tensor
from transformers import PreTrainedModel

from lp.model.quantization.experts import is_transposed, unpack_experts
from lp.model.quantization.joined import QuantizedExperts
from lp.model.quantization.part import unpack
from lp.model.quantization.weight import QuantizedWeight
from lp.model.weight_files import FileKey, Shard, WeightFiles


class FilesOfQuantized(ABC):
    """Tensors by name. It is a context manager, as it keeps files open."""

    def __init__(self, path: str):
        """path: folder or hub id. Raises CheckpointError."""
        self._files = WeightFiles(path)
        self._transposed: set[FileKey] = set()  # experts whose parameter is [E, K, N]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._files.__exit__(*error)

    @property
    def path(self) -> str:
        return self._files.path

    def names(self, model: PreTrainedModel) -> dict[str, FileKey]:
        """See WeightFiles.names. Raises CheckpointError for quantised weights that cannot be read."""
        names, own = self._find_names(model), model.state_dict()
        self._transposed |= {key for name, key in names.items() if name in own and is_transposed(model, name)}
        return names

    @abstractmethod
    def _find_names(self, model: PreTrainedModel) -> dict[str, FileKey]:
        """What `names` returns."""

    @abstractmethod
    def _weights(
        self, key: FileKey, num_experts: int | None, shape: tuple[int, int], shard: Shard | None,
        dtype: torch.dtype,
    ) -> list[QuantizedWeight] | None:  # fmt: skip
        """A quantised weight [N, K], or those of all experts, or a shard of each of them; None for a tensor that is
        none.

        num_experts: None for a weight that is not of experts. shape: N, K of the whole weight.
        Raises CheckpointError, and UnevenCut.
        """

    def quantized(
        self, key: FileKey, expected: Sequence[int], shard: Shard | None, dtype: torch.dtype
    ) -> QuantizedWeight | None:
        """A quantised weight, or a shard of it; None for a tensor that is none.

        expected: shape of the whole parameter. dtype: of the model. Raises CheckpointError, and UnevenCut.
        """
        if len(expected) == 2:
            found = self._weights(key, None, (expected[0], expected[1]), shard, dtype)
            return None if found is None else found[0]
        if len(expected) != 3:
            return None
        num_experts, *size = expected
        if key in self._transposed:
            size = size[::-1]
            shard = shard and Shard(3 - shard.dim, shard.ranges)
        own = shard and Shard(shard.dim - 1, shard.ranges)
        found = self._weights(key, num_experts, (size[0], size[1]), own, dtype)
        return None if found is None else QuantizedExperts(found)

    def read(
        self, key: FileKey, expected: Sequence[int], shard: Shard | None, dtype: torch.dtype,
        device: torch.device,
    ) -> Tensor:  # fmt: skip
        """A tensor, or a shard of it, with the numbers that it has when it is quantised; see WeightFiles.read."""
        if (weight := self.quantized(key, expected, None, dtype)) is None:
            return self._files.read(key, expected, shard, dtype, device)
        if not isinstance(weight, QuantizedExperts):
            return unpack(weight, shard, device)
        whole = unpack_experts(weight, key in self._transposed, device)
        return whole if shard is None else torch.cat([whole[one] for one in shard.bounds(whole.shape)], shard.dim)
