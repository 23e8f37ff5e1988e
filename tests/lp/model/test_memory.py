"""A model that is too large for a GPU is refused before it is loaded."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, PreTrainedModel

from lp.model.memory import DoesNotFit, cache_bytes, check_fits, num_parameters
from tests.models import CONTEXT

GPU = torch.device("cuda", 0)


def test_sizes_are_those_of_the_model(
    checkpoint_folder: Callable[[str], Path], reference_of: Callable[[str], PreTrainedModel]
) -> None:
    folder, model = checkpoint_folder("llama"), reference_of("llama")
    assert num_parameters(folder) == sum(weight.numel() for weight in model.parameters())
    with torch.no_grad():
        cache = model(input_ids=torch.arange(5)[None]).past_key_values
    cached = sum(t.numel() * t.element_size() for layer in cache.layers for t in (layer.keys, layer.values))
    assert cache_bytes(AutoConfig.from_pretrained(folder), torch.float32, 5) == cached


def test_a_gpu_that_is_too_small_is_named_with_the_numbers(
    checkpoint_folder: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = str(checkpoint_folder("llama"))
    config = AutoConfig.from_pretrained(folder)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (8 * 10**9, 10**10))
    check_fits(folder, config, torch.float32, GPU, CONTEXT)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (10**8, 10**10))
    with pytest.raises(DoesNotFit, match=r"does not fit cuda:0: .* 0\.6 GB, and 0\.1 of 10\.0 GB are free; use"):
        check_fits(folder, config, torch.float32, GPU, CONTEXT)
    check_fits(folder, config, torch.float32, torch.device("cpu"), CONTEXT)
    with pytest.raises(DoesNotFit, match=r"model\.kv_memory 0\.1 GB, .* use a lower model\.kv_memory, model\.dtype"):
        check_fits(folder, config, torch.float32, GPU, CONTEXT, 1e8)
    with pytest.raises(DoesNotFit, match=r"does not fit cuda:0: 1/2 of the weights 0\.0 GB"):
        check_fits(folder, config, torch.float32, GPU, CONTEXT, num_parts=2)
