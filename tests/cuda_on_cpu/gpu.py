"""Tensors that say they are on a CUDA device: each holds a CPU tensor, on which its operations are done at once.

Whoever observes (launches.py, graphs.py) is told of every operation before it is done. Knows nothing of models.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from functools import cache
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

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

    def waited(self) -> None:
        """The host waits for all that the device was given."""


# Of all threads: threads share a device.
observers: list[Observer] = []

# Copies to the host that nobody has waited for, and what they will hold.
_late: list[tuple[Tensor, Tensor]] = []


def wait() -> None:
    """Waits for the device: only now do copies to the host that need not be waited for have their numbers."""
    for observer in observers:
        observer.waited()
    _arrive()


def _arrive() -> None:
    for copy, values in _late:
        copy.copy_(values)
    _late.clear()


class GpuTensor(Tensor):
    """A tensor that says it is on a CUDA device. on_cpu: the CPU tensor that holds its values."""

    on_cpu: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor, device: torch.device) -> GpuTensor:
        made = Tensor._make_wrapper_subclass(  # pyright: ignore[reportAttributeAccessIssue]
            cls, inner.size(), strides=inner.stride(), storage_offset=inner.storage_offset(), dtype=inner.dtype,
            device=device,
        )  # fmt: skip
        made.on_cpu = inner
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return perform(func, args, kwargs or {})

    def __tensor_flatten__(self) -> tuple[list[str], torch.device]:
        return ["on_cpu"], self.device

    @staticmethod
    def __tensor_unflatten__(inner: dict[str, Tensor], device: torch.device, size: Any, stride: Any) -> GpuTensor:
        return GpuTensor(inner["on_cpu"], device)

    def untyped_storage(self) -> torch.UntypedStorage:
        return self.on_cpu.untyped_storage()

    def data_ptr(self) -> int:
        return self.on_cpu.data_ptr()

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        return f"GpuTensor({self.on_cpu!r}, device={self.device})"


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
    if _is_composite(func):
        with MakesGpuTensors():  # it is made of other operations, as on a GPU
            return func.decompose(*args, **kwargs)
    tensors: list[Tensor] = []
    mapped((args, kwargs), lambda tensor: tensors.append(tensor) or tensor)
    device = _device_of_result(func, args, tensors, kwargs)
    if device is None and not any(isinstance(tensor, GpuTensor) for tensor in tensors):
        return implementation(func)(*args, **kwargs)
    places = {tensor.device for tensor in tensors if isinstance(tensor, GpuTensor)}
    on_host = [tensor for tensor in tensors if not isinstance(tensor, GpuTensor)]
    _check_one_device(func, places, on_host)
    inner_args, inner_kwargs = mapped((args, kwargs), _on_cpu)
    if "device" in kwargs:
        inner_kwargs["device"] = torch.device("cpu")
    is_view, is_in_place = _aliasing(func)
    operation = Operation(
        str(func), implementation(func), inner_args, inner_kwargs,
        device=next(iter(places), device) or torch.device("cuda", 0),
        access=_access(func, args, places, on_host, device) if observers else Access.none,
        launches=0 if is_view else num_launches(func),
        is_view=is_view, is_in_place=is_in_place,
        is_blocking=not (_is_async(func, args, kwargs) and all(is_pinned(tensor) for tensor in on_host)),
    )  # fmt: skip
    for observer in observers:
        observer.before(operation)
    result = operation.run(*inner_args, **inner_kwargs)
    for observer in observers:
        observer.after(operation, result)
    if func is aten._to_copy.default and device is None:
        _arrive()
        if kwargs.get("non_blocking"):
            _late.append((result, result.clone()))
            result.fill_(-77)
    if is_in_place:
        return kwargs.get("out", args[0])
    if device is None:
        return result
    # A view of a weight must be an ordinary tensor, as the weight is, in inference mode as well.
    is_inference = tensors[0].is_inference() if is_view else torch.is_inference_mode_enabled()
    with torch.inference_mode(is_inference):
        return mapped(result, lambda made: GpuTensor(made, device))


def mapped(value: Any, change: Callable[[Tensor], Any]) -> Any:
    """A nested structure with its tensors changed."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, (tuple, list)):
        return type(value)([mapped(one, change) for one in value])
    if isinstance(value, dict):
        return {key: mapped(one, change) for key, one in value.items()}
    return value


def _on_cpu(tensor: Tensor) -> Tensor:
    return tensor.on_cpu if isinstance(tensor, GpuTensor) else tensor


@cache
def _is_composite(func: Any) -> bool:
    return torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd")


@cache
def _aliasing(func: Any) -> tuple[bool, bool]:
    """Whether an operator makes views, and whether it writes to its arguments."""
    aliases = [value.alias_info for value in func._schema.returns]
    is_in_place = bool(aliases) and all(alias is not None and alias.is_write for alias in aliases)
    return not is_in_place and any(alias is not None for alias in aliases), is_in_place


def _device_of_result(
    func: Any, args: tuple[Any, ...], tensors: list[Tensor], kwargs: dict[str, Any]
) -> torch.device | None:
    """The CUDA device on which the results are; None if they are on the host."""
    if func is aten.copy_.default:
        return args[0].device if isinstance(args[0], GpuTensor) else None
    wanted = kwargs.get("device")
    if wanted is not None:
        return torch.device("cuda", wanted.index or 0) if wanted.type == "cuda" else None
    return next((tensor.device for tensor in tensors if isinstance(tensor, GpuTensor)), None)


def _check_one_device(func: Any, places: set[torch.device], on_host: list[Tensor]) -> None:
    if func not in COPIES and len(places) > 1:
        raise RuntimeError(f"{func}: expected all tensors on one device, but they are on {sorted(map(str, places))}")
    if places and func not in (*COPIES, *INDEXING) and any(tensor.dim() for tensor in on_host):
        raise RuntimeError(f"{func}: expected all tensors on one device, but they are on {places} and the CPU")


def _is_async(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    return bool(kwargs.get("non_blocking") or (func is aten.copy_.default and len(args) > 2 and args[2]))


def _access(
    func: Any, args: tuple[Any, ...], places: set[torch.device], on_host: list[Tensor], device: torch.device | None
) -> Access:
    has_mask = func in INDEXING and any(index is not None and index.dtype == torch.bool for index in args[1])
    if func in SYNCING or has_mask:
        return Access.waits
    if func in COPIES:
        if device is None:
            return Access.to_host
        return Access.to_device if on_host else Access.none
    return Access.to_device if places and any(tensor.dim() for tensor in on_host) else Access.none
