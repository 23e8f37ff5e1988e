"""Names this machine's devices and number formats. Copies values to a device and back."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from lp.platform.processor import processor_name


def device_name(device: torch.device) -> str:
    """The model of a GPU; for any other device, of the processor."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else processor_name()


def driver_version() -> str:
    """What the driver of NVIDIA's GPUs says of its version; empty if the system does not tell it."""
    try:
        return Path("/proc/driver/nvidia/version").read_text(encoding="utf-8").partition("\n")[0]
    except OSError:
        return ""


def dtype_name(dtype: torch.dtype | str | None) -> str:
    """The name without its package, such as float32. dtype: torch's, or as a checkpoint's configuration has it."""
    return str(dtype).removeprefix("torch.")


def why_no_gpu() -> str:
    """Why torch cannot use the GPU that is here; empty if it can, or if there is none."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if torch.cuda.is_available() or not caught:
            return ""
    reason = " ".join(str(caught[0].message).split()).removeprefix("CUDA initialization: ")
    if "driver" in reason and "too old" in reason:
        built = f"torch {torch.__version__}, which is built for CUDA {torch.version.cuda}"
        return (
            f"the NVIDIA driver is too old for {built}: update the driver, or install a torch that is built for an "
            "older CUDA"
        )
    return reason[:300]


# Environment variables by which a GPU's libraries compute float32 products in TF32, whatever a program says.
TF32_VARIABLES = ("TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "NVIDIA_TF32_OVERRIDE")


def forced_tf32(environment: Mapping[str, str] = os.environ) -> str | None:
    """The environment variable that makes a GPU compute float32 products in TF32; None if there is none."""
    return next((name for name in TF32_VARIABLES if environment.get(name, "").strip() == "1"), None)


def require_float32(device: torch.device) -> None:
    """Has a GPU compute float32 products in float32, with sums that are not rounded in between.

    Raises ValueError if the environment forbids that.
    """
    if device.type != "cuda":
        return
    if name := forced_tf32():
        raise ValueError(
            f"{name}=1 has float32 products computed in TF32, with 10 bits instead of 23, so that texts differ from "
            "transformers' own: unset it, or use model.dtype=bfloat16"
        )
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False


def upload(values: np.ndarray, device: torch.device) -> Tensor:
    """The values as a tensor on the device. To a GPU they are copied from pinned memory, for which the host need not
    wait; torch keeps that memory until the copy is done.
    """
    tensor = torch.from_numpy(values)
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor


def upload_into(values: np.ndarray, target: Tensor) -> None:
    """Copies the values to where a tensor on a device lies; see `upload`. The values may be changed at once."""
    target.copy_(torch.from_numpy(values).pin_memory(), non_blocking=True)


class Download:
    """Copies a tensor to the host, from a GPU to pinned memory while the host does something else."""

    def __init__(self, tensor: Tensor):
        self._copy = tensor.to("cpu", non_blocking=True)
        self._done: torch.cuda.Event | None = None
        if tensor.device.type == "cuda":
            self._done = torch.cuda.Event()
            self._done.record(torch.cuda.current_stream(tensor.device))

    def wait(self) -> np.ndarray:
        """The values, once they are there."""
        if self._done:
            self._done.synchronize()
            self._done = None
        return self._copy.numpy()
