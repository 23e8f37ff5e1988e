"""What `lookahead doctor` finds out of GPUs, on emulated ones."""

from __future__ import annotations

import types

import pytest
import torch

from launch.diagnostics import links, machine, software


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


def test_flash_attention_is_tried(flash_attn: types.ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    assert software.flash_attention(has_gpu=True).text == "installed, and works"

    def fail(*arguments: object, **named: object) -> None:
        raise RuntimeError("no kernel image is available")

    monkeypatch.setattr(software.prefix, "by_flash_attn", fail)
    found = software.flash_attention(has_gpu=True)
    assert found.is_broken and "no kernel image is available" in found.text


def test_without_flash_attention_its_command_is_advised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(software.prefix, "missing_package", lambda: "flash-attn is not installed (pip ...)")
    found = software.flash_attention(has_gpu=True)
    assert not found.is_broken and "lookahead-parallel[flash]" in found.advice
    monkeypatch.setattr(software.prefix, "missing_package", lambda: "flash-attn is installed but cannot be used (x)")
    assert software.flash_attention(has_gpu=True).is_broken
