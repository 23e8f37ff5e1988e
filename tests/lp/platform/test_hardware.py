"""Why torch cannot use the GPU that is here is told in one sentence."""

from __future__ import annotations

import warnings

import pytest
import torch

from lp.model.checkpoint import pick_device
from lp.platform.hardware import why_no_gpu

TOO_OLD = (
    "CUDA initialization: The NVIDIA driver on your system is too old (found version 11040). Please update your GPU "
    "driver by downloading and installing a new version from the URL: http://www.nvidia.com/Download/index.aspx"
)


def pretend(monkeypatch: pytest.MonkeyPatch, warning: str | None) -> None:
    """A torch that finds no GPU it can use, and warns so, while the driver's library still counts one."""

    def is_available() -> bool:
        if warning:
            warnings.warn(warning, stacklevel=2)
        return False

    monkeypatch.setattr(torch.cuda, "is_available", is_available)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: int(warning is not None))
    monkeypatch.setattr(torch.version, "cuda", "13.0")


def test_a_driver_that_is_too_old_is_told(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    pretend(monkeypatch, TOO_OLD)
    reason = why_no_gpu()
    assert reason.startswith("the NVIDIA driver is too old for torch 2.") and "is built for CUDA 13.0" in reason
    for device in ("cuda", "cuda:0"):
        with pytest.raises(ValueError, match=rf"^device='{device}' cannot be used: the NVIDIA driver .*device=cpu$"):
            pick_device(device)
    assert pick_device("auto") == torch.device("cpu")
    assert "computing on the CPU: the NVIDIA driver is too old" in caplog.text


def test_another_reason_is_quoted(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, "CUDA initialization: Unexpected error from cudaGetDeviceCount(): 802")
    assert why_no_gpu() == "Unexpected error from cudaGetDeviceCount(): 802"


def test_a_machine_without_a_gpu_needs_no_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, None)
    assert why_no_gpu() == "" and pick_device("auto") == torch.device("cpu") == pick_device("cpu")


def test_a_gpu_that_is_not_there_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(ValueError, match=r"device='cuda:7' is not there: torch sees 2 GPUs"):
        pick_device("cuda:7")
