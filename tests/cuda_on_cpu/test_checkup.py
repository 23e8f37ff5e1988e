"""What `lookahead doctor` finds out of GPUs, on emulated ones."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch

from launch.diagnostics import links, machine, software
from lp.model.gpu import flash, prompts
from lp.model.gpu.prompts import LayerKind
from lp.model.kernels import LayerAttention


@pytest.fixture(autouse=True)
def peers(cuda: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is warned about, and GPUs reach each other."""
    monkeypatch.setattr(machine, "why_no_gpu", lambda: "")
    monkeypatch.setattr(torch.cuda, "can_device_access_peer", lambda one, other: True)
    monkeypatch.setattr(machine.best_s, "__defaults__", (0.01,))


def test_every_gpu_is_named_with_its_memory_and_speed() -> None:
    found = list(machine.gpus(1 << 16))
    assert [finding.name for finding in found] == ["cuda:0", "cuda:1"]
    for finding in found:
        assert finding.text.startswith("emulated, ") and finding.value["bytes_per_s"] > 0


def test_copies_between_two_gpus_are_measured() -> None:
    (found,) = links.between_gpus(1 << 16)
    assert found.name == "cuda:0 to cuda:1" and found.value["is_direct"] and found.value["bytes_per_s"] > 0


def test_the_attention_of_prompts_is_tried(triton: None, flash_attn: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = iter([0.004, 0.001, 0.002])
    monkeypatch.setattr(prompts, "measure_s", lambda run, device: next(seconds))
    monkeypatch.setattr(prompts, "KERNELS", flash.KERNELS)
    monkeypatch.setattr(prompts, "TIMED", (8, 4))
    monkeypatch.setattr(prompts, "CHECKED", ((9, 3),))
    monkeypatch.setattr(prompts, "LEAST_ROWS", 8)
    monkeypatch.setattr(software, "USUAL_LAYER", LayerKind(1, 2, 16, 16, LayerAttention(0.25)))
    found = software.prompts(has_gpu=True)
    assert found.text == (
        "flash-attn (1.00 ms for 8 rows after 4 tokens; torch's FlashAttention 2.00 ms; the Triton kernel 4.00 ms), "
        "in layers of 2 heads of 16, 1 of keys; FlashAttention-3: not installed"
    )
    assert not found.advice and not found.is_broken and found.value["flash-attn"] == 0.001

    def fail(*arguments: object, **named: object) -> None:
        raise RuntimeError("no kernel image is available")

    monkeypatch.setattr(flash_attn, "flash_attn_varlen_func", fail)
    seconds = iter([0.002, 0.003])
    broken = software.prompts(has_gpu=True)
    assert broken.text.startswith("the Triton kernel (2.00 ms") and "no kernel image is available" in broken.text
    assert broken.is_broken and not broken.advice
    monkeypatch.delitem(sys.modules, flash.PACKAGE)
    seconds = iter([0.002, 0.003])
    assert "lookahead-parallel[flash]" in software.prompts(has_gpu=True).advice


def test_without_triton_transformers_computes_prompts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(software, "missing_triton", lambda: "there is no Triton")
    assert software.prompts(has_gpu=True).text.endswith("as fused kernels need Triton: there is no Triton")
    assert "there is none" in software.prompts(has_gpu=False).text
