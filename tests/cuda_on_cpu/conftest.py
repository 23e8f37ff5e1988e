"""The emulated GPU as a fixture."""

from __future__ import annotations

import gc
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from lp.model import reference
from lp.model.gpu import cuda_graphs, flash, prompts
from tests.cuda_on_cpu import cuda_api, device_guard, flash_package, triton_kernels
from tests.cuda_on_cpu.gpu import MakesGpuTensors
from tests.cuda_on_cpu.models import ARCHITECTURES, LADDER
from tests.models import save_checkpoint


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Two emulated GPUs, for this test and thread, whose memory is free afterwards. Forwards are made of operations
    of torch in place of kernels.

    Triton's interpreter keeps what it was given in circles of references.
    """
    device_guard.install()
    cuda_api.install(monkeypatch)
    monkeypatch.setenv("HF_DEACTIVATE_ASYNC_LOAD", "1")  # transformers' threads would make tensors of no emulated GPU
    with MakesGpuTensors():
        yield
    gc.collect()


@pytest.fixture
def triton(cuda: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton on the emulated GPUs: its kernels are interpreted, which takes long."""
    triton_kernels.install(monkeypatch)


@pytest.fixture
def flash_attn(cuda: None, monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """A flash-attn that can be imported, for this test."""
    functions = flash_package.flash_attn_with_kvcache, flash_package.flash_attn_varlen_func
    return flash_package.install(monkeypatch, flash.PACKAGE, *functions)


@pytest.fixture
def flash_attn_3(cuda: None, monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """A FlashAttention-3 that can be imported, for this test."""
    return flash_package.install(monkeypatch, flash.PACKAGE_3, flash_package.flash_attn_with_kvcache_3)


@pytest.fixture(autouse=True)
def few_rungs(monkeypatch: pytest.MonkeyPatch) -> None:
    shorten_ladder(monkeypatch)
    shorten_prompts(monkeypatch)


def shorten_ladder(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few graphs: all of the real ladder's would take a CPU seconds for each model."""
    monkeypatch.setattr(cuda_graphs.CapturedForward.__init__, "__defaults__", (LADDER, cuda_graphs.capture_on_gpu))


@pytest.fixture
def two_rungs(few_rungs: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter takes a second for a graph, so there are as few as can be, captured without warm-up runs."""

    def capture(run: Callable[[], Tensor], pool: Any) -> tuple[Callable[[], None], Tensor]:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool):
            result = run()
        return graph.replay, result

    monkeypatch.setattr(cuda_graphs.CapturedForward.__init__, "__defaults__", ((1, 6), capture))


def shorten_prompts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prompts are checked with few rows, and are computed by our own kernel: kernels are interpreted row by row."""
    monkeypatch.setattr(prompts, "KERNELS", ())
    monkeypatch.setattr(reference, "PROMPT_CACHED", 2)
    monkeypatch.setattr(reference, "PROMPT_ROWS", 3)


@pytest.fixture(scope="session")
def folders(checkpoint_folder: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Checkpoints by their architecture, made before a test has the emulated GPU, which has no random numbers."""
    full: dict[str, Any] = {"num_hidden_layers": 2, "layer_types": ["full_attention"] * 2}
    capped = save_checkpoint(tmp_path_factory.mktemp("capped"), "gemma2", **full)
    rope: dict[str, Any] = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10_000.0}
    dynamic = save_checkpoint(tmp_path_factory.mktemp("dynamic"), "llama", rope_parameters=rope)
    special = {"gemma2_without_windows": capped, "llama_with_dynamic_positions": dynamic}
    return {name: checkpoint_folder(name) for name in ARCHITECTURES} | special
