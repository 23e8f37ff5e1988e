"""Lookahead parallelism on real ranks, of models whose attention layers are this project's own."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from lp.model.compilation import CompileMode
from tests.lp.model.test_own_attention import save
from tests.lp.test_lossless import METHODS, NUM_TOKENS
from tests.models import generate_greedily, save_checkpoint
from tests.parallel.ranks import run_ranks
from tests.parallel.runners.test_attention_kinds_on_ranks import PROMPTS, run_all
from tests.slow import exhaustive_except

# In these families the layers alone are transformers' own.
OTHERS = ("nemotron", "stablelm")


@pytest.mark.parametrize(
    ("name", "num_ranks", "mode"),
    exhaustive_except(
        [
            (name, number, mode)
            for name in ("bloom", "mpt", "falcon, groups", "falcon, ALiBi", "gptj", "codegen", "gpt_neo", *OTHERS)
            for number in (2, 4)
            for mode in CompileMode
            if mode is not CompileMode.auto
        ],
        ("bloom", 2, CompileMode.on),
        ("mpt", 4, CompileMode.on),
        ("falcon, groups", 2, CompileMode.on),
        ("falcon, ALiBi", 4, CompileMode.off),
        ("gptj", 2, CompileMode.off),
        ("codegen", 4, CompileMode.on),
        ("gpt_neo", 2, CompileMode.off),
        ("nemotron", 4, CompileMode.on),
        ("stablelm", 2, CompileMode.on),
    ),
)
def test_greedy_tokens_are_those_of_generate(name: str, num_ranks: int, mode: CompileMode, tmp_path: Path) -> None:
    folder = save_checkpoint(tmp_path, name) if name in OTHERS else save(name, tmp_path)
    reference = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    expected = [generate_greedily(reference, prompt, NUM_TOKENS) for prompt in PROMPTS]
    for found in run_ranks(run_all, num_ranks, str(folder), mode, timeout_s=60):
        assert found == [tokens for tokens in expected for _ in METHODS]
