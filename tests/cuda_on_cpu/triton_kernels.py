"""Triton kernels on the emulated GPU: interpreted, counted, captured and replayed like every other operation."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from lp.model import compilation
from lp.model.gpu.make import make_fused
from lp.platform import build as kernels
from tests.cuda_on_cpu import gpu
from tests.cuda_on_cpu.gpu import Access, GpuTensor, Operation
from tests.lp.model.gpu import interpreter


def install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has kernels interpreted on the CPU tensors inside, until the test ends; skips it where Triton is missing."""
    if importlib.util.find_spec("triton") is None:
        pytest.skip("triton is not installed")
    monkeypatch.setattr(kernels, "missing_triton", lambda: "")
    monkeypatch.setattr(compilation, "make_fused", make_fused)
    monkeypatch.setattr(kernels, "start", start)


def count_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has kernels counted and captured, but not computed."""
    monkeypatch.setattr(interpreter, "start", lambda *arguments, **options: None)


def start(kernel: Any, grid: tuple[int, ...], *arguments: Any, **options: Any) -> None:
    """As kernels.start. Fails for a tensor that is not on the device."""
    tensors = [one for one in arguments if isinstance(one, Tensor)]
    assert all(isinstance(one, GpuTensor) for one in tensors), "a kernel reads memory of the device alone"
    (device,) = {one.device for one in tensors}
    inner = tuple(one.on_cpu if isinstance(one, GpuTensor) else one for one in arguments)

    def run(*arguments: Any, **options: Any) -> None:
        with _disable_current_modes():
            interpreter.start(kernel, grid, *arguments, **options)

    operation = Operation(
        f"triton.{kernel.fn.__name__}", run, inner, options,
        device=device, access=Access.none, launches=1, is_view=False, is_in_place=True, is_blocking=False,
    )  # fmt: skip
    for observer in gpu.observers:
        observer.before(operation)
    run(*inner, **options)
    for observer in gpu.observers:
        observer.after(operation, None)
