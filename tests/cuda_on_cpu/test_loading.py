"""Weights are read straight to a GPU, and what a GPU lacks for graphs is said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from lp.model.checkpoint import ModelSettings, load
from lp.model.fast.choose import CompileMode
from tests.cuda_on_cpu.models import load_on_gpu

Folders = dict[str, Path]
pytestmark = pytest.mark.usefixtures("cuda")


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


def test_float32_is_told_what_graphs_need(folders: Folders) -> None:
    with pytest.raises(ValueError, match=r"model\.dtype=bfloat16 or float16, and this is sdpa; use model\.compile=off"):
        load_on_gpu(folders["llama"], dtype="float32")
