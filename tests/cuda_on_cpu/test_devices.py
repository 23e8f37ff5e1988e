"""A model on the second GPU: how it is read, run in a thread that has set no device, and which kernels it may take."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from lp.model import kernels
from lp.model.checkpoint import ModelSettings, load
from lp.model.compilation import CompileMode
from lp.model.gpu.cuda_graphs import CapturedForward
from lp.model.quantization.model import empty_model
from lp.model.weight_files import WeightFiles
from parallel.sharding.weights import fill
from tests.cuda_on_cpu.cuda_api import current_device
from tests.cuda_on_cpu.gpu import MakesGpuTensors
from tests.cuda_on_cpu.models import ROUNDING, error_of_graphs, fill_cache, load_on_gpu

Folders = dict[str, Path]
pytestmark = pytest.mark.usefixtures("cuda")


def test_graphs_are_captured_on_the_models_own_device(folders: Folders) -> None:
    """The server steps in a worker thread, and a thread's current device is cuda:0 until it is set."""
    model = load_on_gpu(folders["llama"], device="cuda:1")
    assert isinstance(model.fast, CapturedForward) and model.device == torch.device("cuda", 1)
    found: list[Any] = []

    def serve() -> None:
        try:
            with MakesGpuTensors():
                cache = model.make_cache(1)
                fill_cache(model, cache, 20)
                found.append(error_of_graphs(model, cache, 5))
        except Exception as error:
            found.append(error)

    thread = threading.Thread(target=serve)
    thread.start()
    thread.join()
    assert isinstance(found[0], float) and found[0] < ROUNDING
    assert isinstance(model.fast, CapturedForward) and current_device() == 0


def test_sdpa_does_not_use_cudnn(folders: Folders, monkeypatch: pytest.MonkeyPatch) -> None:
    """cuDNN makes a plan for each number of keys, which changes in every step."""
    allowed = []
    real = kernels.scaled_dot_product_attention

    def sdpa(*args: Any, **kwargs: Any) -> Any:
        allowed.append(torch.backends.cuda.cudnn_sdp_enabled())
        return real(*args, **kwargs)

    monkeypatch.setattr(kernels, "scaled_dot_product_attention", sdpa)
    before = torch.backends.cuda.cudnn_sdp_enabled()
    model = load_on_gpu(folders["llama"], CompileMode.off, "float32")
    fill_cache(model, model.make_cache(1), 3)
    assert allowed and not any(allowed) and torch.backends.cuda.cudnn_sdp_enabled() == before


@pytest.mark.parametrize("device", ["cuda:1", "cpu"])
def test_weights_do_not_pass_through_the_hosts_memory(
    device: str, folders: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[Any] = []
    real: Any = AutoModelForCausalLM.from_pretrained

    def from_pretrained(*args: Any, **kwargs: Any) -> Any:
        model, found = real(*args, **kwargs)
        read.extend({weight.device for weight in model.parameters()})
        return model, found

    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", from_pretrained)
    settings = ModelSettings(str(folders["llama"]), device=device, compile=CompileMode.off)
    model = load(settings).model
    assert read == [torch.device(device)] and model.device == read[0]


def test_nor_do_those_of_a_rank_with_a_part_of_the_model(folders: Folders, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[torch.device] = []
    real: Any = WeightFiles.read

    def note(*given: Any) -> Any:
        read.append((found := real(*given)).device)
        return found

    monkeypatch.setattr(WeightFiles, "read", note)
    model = empty_model(AutoConfig.from_pretrained(folders["llama"]), torch.bfloat16)
    fill(model, str(folders["llama"]), model.config, torch.bfloat16, torch.device("cuda", 1))
    assert set(read) == {torch.device("cuda", 1)} and len(read) == len(list(model.parameters()))
