"""Records the operations that a model runs: which operation made which memory from which.

A tensor is known by its memory, so views need no operation of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes, _get_current_dispatch_mode
from torch.utils._pytree import tree_leaves

from lp.model.attention import Step
from lp.model.kernels import LayerAttention
from lp.model.recurrent.base import RecurrentLayer

# Operations that make memory whose numbers do not depend on their arguments.
BLANK = ("empty", "empty_like", "new_empty", "zeros", "zeros_like", "new_zeros")


class Inexpressible(ValueError):
    """The model does something that has no native form. The message names it."""


@dataclass
class Operation:
    """One operation. name: as in torch.ops, or that of a `note`. outputs: what it returned, in memory of its own."""

    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    outputs: list[Tensor]


@dataclass
class Recording:
    """All operations in the order in which they ran.

    changed: memory that some operation wrote to, but for those that compute each number of it anew (see `is_in_place`),
    fill new memory (see `fills`) or copy to what another operation has made. dtype: the model's. incoming, and hidden
    states as output: of a stage of a pipeline.
    """

    tokens: Tensor
    positions: Tensor
    output: Tensor
    operations: list[Operation]
    changed: set[int]
    dtype: torch.dtype
    step: RecordedStep
    incoming: Tensor | None = None
    gives_logits: bool = True


def memory(tensor: Tensor) -> int:
    """A number that names the memory of a tensor, for as long as the tensor lives."""
    return tensor.untyped_storage()._cdata


def is_in_place(name: str) -> bool:
    """Whether an operation computes each number of its first argument anew and writes it there, such as div_."""
    name = name.partition(".")[0]
    return name.endswith("_") and name[:-1] in ("add", "sub", "mul", "div")


def copies(name: str) -> bool:
    """Whether an operation copies its second argument to its first one."""
    return name.partition(".")[0] == "copy_"


def fills(name: str) -> bool:
    """Whether an operation writes to a part of its first argument, of which Lowering then finds what was there."""
    return name.partition(".")[0] in ("copy_", "scatter_")


class Recorder(TorchDispatchMode):
    """Keeps the operations that run while it is active, and all their tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: list[Operation] = []
        self.changed: set[int] = set()
        self._blank: set[int] = set()  # memory that operations of BLANK have made
        self._made: set[int] = set()  # memory that any operations have made

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func.__name__
        given = [arg for arg in tree_leaves((args, kwargs)) if isinstance(arg, Tensor)]
        known = {memory(tensor) for tensor in given}
        is_filled = fills(name) and memory(args[0]) in (self._made if copies(name) else self._blank)
        if func._schema.is_mutable and not is_in_place(name) and not is_filled:
            self.changed |= known
        outputs = [out for out in tree_leaves(result) if isinstance(out, Tensor)]
        made = [out for out in outputs if memory(out) not in known]
        if name.partition(".")[0] in BLANK:
            self._blank |= set(map(memory, made))
        self._made |= set(map(memory, made))
        if made or not outputs or is_in_place(name) or is_filled:
            self.operations.append(Operation(name, args, kwargs or {}, outputs))
        else:
            self.operations.append(Operation("view", args, {}, outputs))
        return result

    def note(self, name: str, args: tuple[Any, ...], shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Records one operation in place of what it is made of; returns zeros as its outcome."""
        with _disable_current_modes():
            out = next(arg for arg in args if isinstance(arg, Tensor)).new_zeros(tuple(shape), dtype=dtype)
        self.operations.append(Operation(name, args, {}, [out]))
        return out


def recorder() -> Recorder | None:
    """The recorder that is active."""
    active = _get_current_dispatch_mode()
    return active if isinstance(active, Recorder) else None


@dataclass(kw_only=True)
class RecordedStep(Step):
    """A step whose attention is recorded instead of computed. of_rows: their positions."""

    recorder: Recorder
    of_rows: Tensor

    @property
    def positions(self) -> Tensor:
        return self.of_rows

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, how: LayerAttention, is_shared: bool = False
    ) -> Tensor:
        shape = 1, query.shape[2], query.shape[1], value.shape[3]
        return self.recorder.note("attention", (query, key, value, layer, how), shape, query.dtype)

    def recur(self, layer: RecurrentLayer, inputs: Sequence[Tensor]) -> Tensor:
        return layer.run(RecordedRows(self.recorder, layer.index), inputs)


@dataclass
class RecordedRows:
    """The rows of a recurrent layer, which record what is to be computed of its states: see StateRows."""

    recorder: Recorder
    layer: int

    def convolve(self, inputs: Tensor, convolution: nn.Conv1d) -> Tensor:
        bias = () if convolution.bias is None else (convolution.bias.detach(),)
        args = inputs, self.layer, convolution.weight.detach(), *bias
        return self.recorder.note("convolution", args, inputs.shape, inputs.dtype)

    def read(self, queries: Tensor, keys: Tensor, values: Tensor, logs: Tensor, rates: Tensor | None = None) -> Tensor:
        args = queries, keys, values, logs, self.layer, *(() if rates is None else (rates,))
        return self.recorder.note("recurrence", args, values.shape, values.dtype)

    def scan(self, queries: Tensor, keys: Tensor, values: Tensor, times: Tensor, rates: Tensor) -> Tensor:
        return self.recorder.note("scan", (queries, keys, values, times, rates, self.layer), values.shape, values.dtype)
