"""Counts what a GPU would be asked to do: kernels, copies, and waits of the host."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.cuda_on_cpu import gpu
from tests.cuda_on_cpu.gpu import Access, Operation


@dataclass
class Launches:
    """kernels: on the device, without copies to and from the host. to_device, to_host: copies. blocking: those copies
    for which the host waits. waits: other waits of the host for a number of the device. by_name: kernels by operator.
    """

    kernels: int = 0
    to_device: int = 0
    to_host: int = 0
    blocking: int = 0
    waits: int = 0
    by_name: Counter[str] = field(default_factory=Counter)

    def before(self, operation: Operation) -> None:
        self.kernels += operation.launches if operation.access not in (Access.to_device, Access.to_host) else 0
        self.to_device += operation.access is Access.to_device
        self.to_host += operation.access is Access.to_host
        self.waits += operation.access is Access.waits
        is_copy = operation.access in (Access.to_device, Access.to_host)
        self.blocking += is_copy and operation.is_blocking
        if operation.launches:
            self.by_name[operation.name] += operation.launches

    def after(self, operation: Operation, result: Any) -> None:
        """Nothing to do."""

    def waited(self) -> None:
        self.waits += 1


class NoHostAccess:
    """The capture linter: fails at what a GPU could not capture, without a graph."""

    is_capturing = True

    def before(self, operation: Operation) -> None:
        if operation.access is not Access.none:
            raise AssertionError(f"{operation.name} {operation.access.value}")

    def after(self, operation: Operation, result: Any) -> None:
        """Nothing to do."""

    def waited(self) -> None:
        raise AssertionError("the host waits for the device")


@contextmanager
def observed(observer: Any) -> Iterator[Any]:
    """Shows an observer all operations of the body."""
    gpu.observers.append(observer)
    try:
        yield observer
    finally:
        gpu.observers.remove(observer)
