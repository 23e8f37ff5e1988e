"""With model.invariant=on, text in 16 bits does not depend on the method; what cannot promise that is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from lp import Auto, Autoregressive, Engine, Jacobi, Lookahead, PromptLookup, Sampling
from lp.model.checkpoint import Invariance, ModelSettings, load
from parallel.sharding.stages import read_stage
from tests.lp.test_lossless import make_prompt
from tests.models import save_checkpoint
from tests.slow import slow_except

METHODS = (Auto(rows=24), Lookahead(5, 4, 5), Jacobi(6), PromptLookup(4, 5))


@pytest.mark.parametrize(
    ("name", "temperature"),
    slow_except(
        [(name, at) for name in ("llama", "gemma2", "lfm2", "qwen3_5", "bamba") for at in (0.0, 1.0)],
        ("llama", 1.0), ("qwen3_5", 1.0),
    ),
)  # fmt: skip
def test_text_in_bfloat16_is_the_same_for_every_method(
    name: str, temperature: float, checkpoint_folder: Callable[[str], Path]
) -> None:
    engine = Engine.from_pretrained(str(checkpoint_folder(name)), "bfloat16", "cpu", invariant="on")
    sampling = Sampling(temperature=temperature, seed=5)
    for length in (1, 33, 70):
        prompt = make_prompt(length)
        plain, *others = (
            engine.generate(prompt, decode=decode, sampling=sampling, max_new_tokens=60).token_ids
            for decode in (Autoregressive(), *METHODS)
        )
        assert all(tokens == plain for tokens in others)


def test_what_cannot_be_invariant_is_refused(checkpoint_folder: Callable[[str], Path], tmp_path: Path) -> None:
    llama, rope = str(checkpoint_folder("llama")), {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10_000.0}
    dynamic = str(save_checkpoint(tmp_path, "llama", rope_parameters=rope))
    reason = (
        "LlamaForCausalLM cannot be compiled natively: it cannot be written as a program: a choice by the positions"
    )
    with pytest.raises(ValueError, match=rf"model\.invariant=on: {reason}"):
        Engine.from_pretrained(dynamic, "bfloat16", "cpu", invariant="on")
    with pytest.raises(ValueError, match=r"model\.invariant=on needs the compiled forward"):
        Engine.from_pretrained(llama, "bfloat16", "cpu", compile="off", invariant="on")
    with pytest.raises(ValueError, match=r"use parallel=single or parallel=lp"):
        load(ModelSettings(llama, device="cpu", invariant=Invariance.on), reader=read_stage(0, 2))
