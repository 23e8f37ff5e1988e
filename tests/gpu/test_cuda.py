"""Decoding is exact on a GPU: float32 tokens equal those of transformers' greedy `generate` on the same GPU."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from lp import Autoregressive, Engine, Jacobi, Lookahead, PromptLookup, Sampling

pytestmark = [pytest.mark.gpu, pytest.mark.real_gpu]

METHODS = [Autoregressive(), Jacobi(6), PromptLookup(4, 5), Lookahead(3, 3, 3), Lookahead(15, 5, 15)]
PROMPTS = [[7], [5, 9, 5, 9, 5], [(3 + 7 * i) % 41 + 2 for i in range(300)]]


@pytest.fixture
def exact_products() -> None:
    """Turns off TF32, which would round the inputs of matrix products."""
    torch.backends.cuda.matmul.allow_tf32 = False


@pytest.mark.parametrize("architecture", ["llama", "mistral", "gemma2", "gpt2", "qwen3"])
def test_greedy_text_is_that_of_generate(
    architecture: str, checkpoint_folder: Callable[[str], Path], exact_products: None
) -> None:
    folder = checkpoint_folder(architecture)
    engine = Engine.from_pretrained(str(folder), device="cuda")
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").cuda()
    for prompt in PROMPTS:
        inputs = torch.tensor([prompt], device="cuda")
        expected = model.generate(inputs, max_new_tokens=40, do_sample=False)[0, len(prompt) :].tolist()
        for decode in METHODS:
            got = engine.generate(prompt, max_new_tokens=40, decode=decode, sampling=Sampling(0.0, seed=1))
            assert got.token_ids == expected


def test_one_seed_gives_one_text(checkpoint_folder: Callable[[str], Path], exact_products: None) -> None:
    engine = Engine.from_pretrained(str(checkpoint_folder("llama")), device="cuda")
    sampling = Sampling(temperature=0.9, top_p=0.95, seed=4)
    texts = [
        engine.generate(PROMPTS[1], max_new_tokens=40, decode=decode, sampling=sampling).token_ids for decode in METHODS
    ]
    assert texts == [texts[0]] * len(METHODS)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_runs(dtype: str, checkpoint_folder: Callable[[str], Path]) -> None:
    engine = Engine.from_pretrained(str(checkpoint_folder("llama")), dtype=dtype, device="cuda")
    assert len(engine.generate(PROMPTS[2], max_new_tokens=20).token_ids) <= 20
