"""CUDA graphs on a CPU: what is captured is a list of operations on the memory that they had, and is run again.

As on a GPU, a graph owns what was made while it was captured, and holds nothing else alive: a replay fails if memory
that it needs is gone. Numbers that the host passed are frozen. Nothing that touches the host can be captured.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._pytree import tree_leaves, tree_map

from tests.cuda_on_cpu.gpu import Access, Operation, mapped


class MemoryIsGone(AssertionError):
    """A graph is replayed whose memory belongs to something else by now."""


class NotCapturable(RuntimeError):
    """As on a GPU: an operation that the host takes part in ends a capture."""


class Place:
    """Where a tensor is in memory that the graph does not own."""

    def __init__(self, tensor: Tensor):
        self.storage = StorageWeakRef(tensor.untyped_storage())
        self.layout = tensor.storage_offset(), tensor.size(), tensor.stride()
        self.dtype = tensor.dtype

    def tensor(self) -> Tensor:
        storage = torch.UntypedStorage._new_with_weak_ptr(self.storage.cdata)
        if storage is None:
            raise MemoryIsGone(f"the memory of a tensor {tuple(self.layout[1])} is gone")
        return torch.empty(0, dtype=self.dtype).set_(storage, *self.layout)


class Recording:
    """What a graph has captured. device: where; operations on another device do not belong to its stream."""

    is_capturing = True

    def __init__(self, device: torch.device):
        self.device = device
        self.num_kernels = 0
        self._steps: list[tuple[Any, Any, Any, Any]] = []
        self._owned: dict[int, Tensor] = {}

    def before(self, operation: Operation) -> None:
        if operation.device != self.device:
            raise NotCapturable(f"{operation.name} is on {operation.device}, and a graph is captured on {self.device}")
        if operation.access is not Access.none:
            raise NotCapturable(f"{operation.name} {operation.access.value}, while a graph is captured")

    def after(self, operation: Operation, result: Any) -> None:
        self.num_kernels += operation.launches
        if not operation.is_view and not operation.is_in_place:
            for made in _tensors(result):
                self._owned[made.untyped_storage()._cdata] = made
        if not operation.is_view:
            args, kwargs = mapped((operation.args, operation.kwargs), self._kept)
            outputs = None if operation.is_in_place else mapped(result, self._kept)
            self._steps.append((operation.run, args, kwargs, outputs))

    def waited(self) -> None:
        raise NotCapturable("the host waits for the device, while a graph is captured")

    def finish(self) -> None:
        """Forgets the results of the capture itself: a GPU computes nothing while it captures."""
        for made in self._owned.values():
            made.fill_(float("nan") if made.is_floating_point() else 0)

    @torch.inference_mode()  # a GPU's kernels know nothing of torch's modes
    def replay(self) -> None:
        for run, args, kwargs, outputs in self._steps:
            found = run(*tree_map(_alive, args), **tree_map(_alive, kwargs))
            if outputs is not None:
                for old, new in zip(_tensors(tree_map(_alive, outputs)), _tensors(found), strict=True):
                    old.copy_(new)

    def _kept(self, value: Tensor) -> Any:
        if value.untyped_storage()._cdata in self._owned:
            return value
        return Place(value)


def _alive(value: Any) -> Any:
    return value.tensor() if isinstance(value, Place) else value


def _tensors(values: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor)]
