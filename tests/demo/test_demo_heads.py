"""The heads that ship with the demo model: they are small, they are found, and their drafts are accepted."""

from __future__ import annotations

import json

import pytest

from lp import Autoregressive, Engine, Medusa, Sampling
from lp.model.heads.files import WEIGHTS, read_info
from tests.demo.test_demo_model import FOLDER, PROMPT
from tests.slow import slow_except

HEADS = FOLDER / "heads"
PROMPTS = [PROMPT, "class Stack:\n    def __init__(self):\n", "def fibonacci(n):\n    if n"]


@pytest.fixture(scope="module")
def engine() -> Engine:
    return Engine.from_pretrained(str(FOLDER), device="cpu")


def test_size_and_report() -> None:
    info, report = read_info(HEADS), json.loads((HEADS / "training.json").read_text())
    assert (HEADS / WEIGHTS).stat().st_size < 4e6 and info.shares_output
    assert len(report["held_out_accuracy"]) == len(report["held_out_in_best"]) == info.num_heads
    card = (FOLDER / "README.md").read_text()
    for share in (*report["held_out_accuracy"], *report["held_out_in_best"]):
        assert f"{100 * share:.0f}%" in card


@pytest.mark.parametrize("temperature", slow_except([0.0, 0.8], 0.8))
def test_the_text_is_that_of_plain_decoding_in_fewer_steps(engine: Engine, temperature: float) -> None:
    tokens = steps = 0
    for prompt in PROMPTS:
        sampling = Sampling(temperature=temperature, seed=7)
        plain, found = (
            engine.generate(prompt, max_new_tokens=64, decode=how, sampling=sampling)
            for how in (Autoregressive(), Medusa())
        )
        assert found.token_ids == plain.token_ids
        tokens, steps = tokens + found.stats.tokens, steps + found.stats.steps
    assert tokens / steps > (1.15 if temperature else 1.3)
