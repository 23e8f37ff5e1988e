"""What all readers of a checkpoint whose weights are quantised, or are to be, have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Self

import torch
from torch import Tensor
from transformers import PreTrainedModel

from lp.model.quantization.part import unpack
from lp.model.quantization.weight import QuantizedWeight
from lp.model.weight_files import Matrices, Shard, WeightFiles


class FilesOfQuantized(ABC):
    """Tensors by name. It is a context manager, as it keeps files open."""

    def __init__(self, path: str):
        """path: folder or hub id. Raises CheckpointError."""
        self._files = WeightFiles(path)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._files.__exit__(*error)

    @property
    def path(self) -> str:
        return self._files.path

    @abstractmethod
    def names(self, model: PreTrainedModel) -> dict[str, str | Matrices]:
        """See WeightFiles.names. Raises CheckpointError for quantised weights that cannot be read."""

    @abstractmethod
    def quantized(
        self, key: str | Matrices, expected: Sequence[int], shard: Shard | None, dtype: torch.dtype
    ) -> QuantizedWeight | None:
        """A quantised weight, or a shard of it; None for a tensor that is none.

        expected: shape of the whole weight. dtype: of the model. Raises CheckpointError, and UnevenCut.
        """

    def read(
        self, key: str | Matrices, expected: Sequence[int], shard: Shard | None, dtype: torch.dtype,
        device: torch.device,
    ) -> Tensor:  # fmt: skip
        """A tensor, or a shard of it, with the numbers that it has when it is quantised; see WeightFiles.read."""
        if (weight := self.quantized(key, expected, None, dtype)) is not None:
            return unpack(weight, shard, device)
        return self._files.read(key, expected, shard, dtype, device)
