"""Tensors that say they are on a CUDA device: each holds a CPU tensor, on which its operations are done at once.

Whoever observes (launches.py, graphs.py) is told of every operation before it is done. Knows nothing of models.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from tests.cuda_on_cpu.operators import SYNCING, implementation, is_pinned, num_launches

aten = torch.ops.aten
COPIES = (aten._to_copy.default, aten.copy_.default)
# Operators that take indices from the host as well, and then copy them to the device.
INDEXING = (aten.index.Tensor, aten.index_put_.default, aten._unsafe_index.Tensor, aten.index_put.default)


class Access(Enum):
    """What an operation means between host and device."""

    none = "works on the device alone"
    to_device = "copies from the host to the device"
    to_host = "copies from the device to the host"
    waits = "waits on the host for a result of the device"


@dataclass(frozen=True)
class Operation:
    """An operation on the device, with the CPU tensors that stand for the device's.

    name: the operator's. is_view: whether it only makes a view. launches: the number of kernels that a GPU runs for it.
    is_blocking: whether a copy waits on the host until it is done.
    """

    name: str
    run: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    device: torch.device
    access: Access
    launches: int
    is_view: bool
    is_in_place: bool
    is_blocking: bool


class Observer(Protocol):
    """Sees every operation. `before` may raise, as a GPU would."""

    def before(self, operation: Operation) -> None: ...

    def after(self, operation: Operation, result: Any) -> None: ...


# Of all threads: threads share a device.
observers: list[Observer] = []


class GpuTensor(Tensor):
    """A tensor that says it is on a CUDA device. inner: the CPU tensor that holds its values."""

    inner: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor, device: torch.device) -> GpuTensor:
        made = Tensor._make_wrapper_subclass(  # pyright: ignore[reportAttributeAccessIssue]
            cls, inner.size(), strides=inner.stride(), storage_offset=inner.storage_offset(), dtype=inner.dtype,
            device=device,
        )  # fmt: skip
        made.inner = inner
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return perform(func, args, kwargs or {})

    def __tensor_flatten__(self) -> tuple[list[str], torch.device]:
        return ["inner"], self.device

    @staticmethod
    def __tensor_unflatten__(inner: dict[str, Tensor], device: torch.device, size: Any, stride: Any) -> GpuTensor:
        return GpuTensor(inner["inner"], device)

    def untyped_storage(self) -> torch.UntypedStorage:
        return self.inner.untyped_storage()

    def data_ptr(self) -> int:
        return self.inner.data_ptr()

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        return f"GpuTensor({self.inner!r}, device={self.device})"


class MakesGpuTensors(TorchDispatchMode):
    """While it is active in a thread, what the thread makes with device="cuda" is a GpuTensor."""

    def __enter__(self) -> MakesGpuTensors:
        self._before = torch._C._only_lift_cpu_tensors()
        torch._C._set_only_lift_cpu_tensors(True)  # torch.tensor then makes its values on the CPU and copies them
        return super().__enter__()

    def __exit__(self, *reason: Any) -> None:
        super().__exit__(*reason)
        torch._C._set_only_lift_cpu_tensors(self._before)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return perform(func, args, kwargs or {})


def perform(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Does an operation, on the CPU tensors inside; wraps its results."""
    if torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd"):
        with MakesGpuTensors():  # it is made of other operations, as on a GPU
            return func.decompose(*args, **kwargs)
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    device = _device_of_result(func, tensors, kwargs)
    if device is None and not any(isinstance(tensor, GpuTensor) for tensor in tensors):
        return implementation(func)(*args, **kwargs)
    operation = _operation(func, args, kwargs, tensors, device)
    for observer in observers:
        observer.before(operation)
    result = operation.run(*operation.args, **operation.kwargs)
    for observer in observers:
        observer.after(operation, result)
    if operation.is_in_place:
        return kwargs.get("out", args[0])
    if device is None:
        return result
    # A view of a weight must be an ordinary tensor, as the weight is, in inference mode as well.
    with torch.inference_mode((torch.is_inference_mode_enabled() and not operation.is_view) or _is_inference(tensors)):
        return tree_map(lambda made: GpuTensor(made, device) if isinstance(made, Tensor) else made, result)


def _is_inference(tensors: list[Tensor]) -> bool:
    return bool(tensors) and tensors[0].is_inference()


def _device_of_result(func: Any, tensors: list[Tensor], kwargs: dict[str, Any]) -> torch.device | None:
    """The CUDA device on which the results are; None if they are on the host."""
    wanted = kwargs.get("device")
    if wanted is not None:
        return torch.device("cuda", wanted.index or 0) if wanted.type == "cuda" else None
    return next((tensor.device for tensor in tensors if isinstance(tensor, GpuTensor)), None)


def _operation(
    func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], tensors: list[Tensor], device: torch.device | None
) -> Operation:
    places = {tensor.device for tensor in tensors if isinstance(tensor, GpuTensor)}
    if func not in COPIES and len(places) > 1:
        raise RuntimeError(f"{func}: expected all tensors on one device, but they are on {sorted(map(str, places))}")
    on_host = [tensor for tensor in tensors if not isinstance(tensor, GpuTensor)]
    if places and func not in (*COPIES, *INDEXING) and any(tensor.dim() for tensor in on_host):
        raise RuntimeError(f"{func}: expected all tensors on one device, but they are on {places} and the CPU")
    returns = func._schema.returns
    is_in_place = bool(returns) and all(value.alias_info is not None and value.alias_info.is_write for value in returns)
    is_view = not is_in_place and any(value.alias_info is not None for value in returns)
    if func is aten.copy_.default:
        device = args[0].device if isinstance(args[0], GpuTensor) else None
    inner = tree_map(_inner, (args, kwargs))
    is_async = kwargs.get("non_blocking", False) or (func is aten.copy_.default and len(args) > 2 and args[2])
    pinned = all(is_pinned(tensor) for tensor in on_host)
    return Operation(
        str(func), implementation(func), *inner,
        device=next(iter(places), device) or torch.device("cuda", 0),
        access=_access(func, args, places, on_host, device),
        launches=0 if is_view else num_launches(func, args),
        is_view=is_view, is_in_place=is_in_place, is_blocking=not (is_async and pinned),
    )  # fmt: skip


def _access(
    func: Any, args: tuple[Any, ...], places: set[torch.device], on_host: list[Tensor], device: torch.device | None
) -> Access:
    has_mask = func in INDEXING and any(leaf.dtype == torch.bool for leaf in tree_leaves(args[1]) if leaf is not None)
    if func in SYNCING or has_mask:
        return Access.waits
    if func in COPIES:
        if device is None:
            return Access.to_host
        return Access.to_device if on_host else Access.none
    return Access.to_device if places and any(tensor.dim() for tensor in on_host) else Access.none


def _inner(value: Any) -> Any:
    if isinstance(value, torch.device):
        return torch.device("cpu")
    return value.inner if isinstance(value, GpuTensor) else value
