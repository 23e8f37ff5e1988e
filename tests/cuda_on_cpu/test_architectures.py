"""Every architecture on the emulated GPU: the text of `generate`, and graphs with the model's own logits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from lp import Auto, Autoregressive, Engine, Lookahead, Sampling
from lp.kv_cache.arena import Arena, PagedCache
from lp.model.compilation import CompileMode
from lp.model.fast_forward import SequenceRows
from lp.model.gpu.cuda_graphs import CapturedForward
from lp.model.gpu.step_tensors import StepBuffer
from tests.cuda_on_cpu.launches import NoHostAccess, observed
from tests.cuda_on_cpu.models import ARCHITECTURES, ROUNDING, error_of_graphs, fill_cache, load_on_gpu
from tests.cuda_on_cpu.paged import PagedForward
from tests.lp.test_tree import random_tree
from tests.models import EOS, generate_greedily
from tests.slow import slow_except

Folders = dict[str, Path]
PROMPT, NUM_TOKENS = [5, 9, 5, 9, 5], 12
# The others have layers with a sliding window or with capped scores, which the stand-in for fused kernels has not.
CAPTURED = {"llama", "qwen3", "phi3", "gpt2", "olmo2", "qwen3_moe"}


@pytest.fixture(scope="session")
def expected(reference_of: Callable[[str], PreTrainedModel]) -> dict[str, list[int]]:
    """The greedy text of transformers on the CPU, by architecture."""
    return {name: generate_greedily(reference_of(name), PROMPT, NUM_TOKENS, [EOS]) for name in ARCHITECTURES}


@pytest.mark.parametrize("name", slow_except(ARCHITECTURES, "llama"))
def test_text_in_float32_is_that_of_generate(
    name: str, folders: Folders, expected: dict[str, list[int]], cuda: None
) -> None:
    engine = Engine.from_pretrained(str(folders[name]), device="cuda", step_times="off")
    for decode in (Lookahead(3, 3, 3), Auto()):
        found = engine.generate(PROMPT, max_new_tokens=NUM_TOKENS, decode=decode, sampling=Sampling(0.0, seed=1))
        assert found.token_ids == expected[name]


@pytest.mark.parametrize("name", slow_except(sorted(CAPTURED), "llama"))
def test_graphs_are_captured_and_right(name: str, folders: Folders, cuda: None) -> None:
    model = load_on_gpu(folders[name])
    cache = model.make_cache(1)
    fill_cache(model, cache, 19)
    assert all(error_of_graphs(model, cache, num_rows) < ROUNDING for num_rows in (1, 7))
    assert isinstance(model.fast, CapturedForward), "a capture failed"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama", "gpt2"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_request_in_half_precision_gives_the_same_text_from_used_pages(
    name: str, dtype: str, folders: Folders, cuda: None
) -> None:
    """A whole request: prompt, arena, graphs, sampler."""
    engine = Engine.from_pretrained(str(folders[name]), dtype=dtype, device="cuda", compile="on", step_times="off")
    sampling = Sampling(temperature=0.8, top_k=20, top_p=0.9, seed=3, presence_penalty=0.5)
    settings: Any = {"max_new_tokens": 8, "decode": Autoregressive(), "sampling": sampling}
    texts = [engine.generate(PROMPT, **settings).token_ids for _ in range(2)]
    assert len(texts[0]) and texts[0] == texts[1]


@pytest.mark.parametrize("name", slow_except(sorted(CAPTURED), "llama"))
def test_what_is_captured_does_not_touch_the_host(name: str, folders: Folders, cuda: None) -> None:
    """The capture linter over the function of tensors."""
    model = load_on_gpu(folders[name], CompileMode.off)
    cache = model.make_cache(1)
    fill_cache(model, cache, 9)
    tree = random_tree(np.random.default_rng(0), 6)
    assert isinstance(model.memory, Arena) and isinstance(cache, PagedCache)
    forward = PagedForward(model.model, model.memory, model.attention_kind)
    given = StepBuffer(8, 1, model.max_length, model.device)
    answered = torch.arange(6, device="cuda")
    given.fill([SequenceRows(tree, cache, 6)])
    with torch.inference_mode(), observed(NoHostAccess()):
        forward(given.on_device, answered)
