"""Why torch cannot use the GPU that is here is told in one sentence."""

from __future__ import annotations

import warnings

import pytest
import torch

from lp.model.checkpoint import pick_device
from lp.model.memory import find_bound
from lp.platform.hardware import TF32_VARIABLES, forced_tf32, require_float32, why_no_gpu
from parallel.mesh import Mesh, is_one_gpu

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


@pytest.mark.parametrize("name", TF32_VARIABLES)
def test_float32_is_float32(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    matmul = torch.backends.cuda.matmul
    matmul.allow_tf32 = True
    monkeypatch.setenv(name, "0")
    require_float32(torch.device("cuda"))
    assert not matmul.allow_tf32 and not torch.backends.cudnn.allow_tf32
    assert not matmul.allow_fp16_reduced_precision_reduction and not matmul.allow_bf16_reduced_precision_reduction
    assert torch.get_float32_matmul_precision() == "highest"
    monkeypatch.setenv(name, "1")
    assert forced_tf32() == name
    require_float32(torch.device("cpu"))
    with pytest.raises(ValueError, match=f"{name}=1 .* unset it, or use model.dtype=bfloat16"):
        require_float32(torch.device("cuda"))


def test_ranks_on_one_gpu_share_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the others have taken or left so far: each gets what its weights leave of an equal share."""
    gpu = torch.device("cuda", 0)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 10e9)
    sizes = []
    for free in (70e9, 35e9):
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device, free=free: (free, 80e9))
        sizes.append(find_bound("auto", gpu, num_sharing=2).size)
    assert sizes == [pytest.approx(0.94 * 40e9 - 10e9)] * 2
    assert find_bound("auto", gpu).size == pytest.approx(35e9 - 0.06 * 80e9)


def test_who_shares_a_device() -> None:
    assert is_one_gpu("cuda:1") and not any(map(is_one_gpu, ("cuda", "auto", "cpu")))
    places = {"num_ranks": 2, "num_local_ranks": 2}
    own, one = torch.device("cuda", 0), torch.device("cuda", 1)
    assert Mesh({"lp": 2}, **places).num_sharing == 2, "they share the memory of the host"
    assert Mesh({"lp": 2}, **places, device=own).num_sharing == 1
    assert Mesh({"lp": 2}, **places, device=one, shares_gpu=True).num_sharing == 2
