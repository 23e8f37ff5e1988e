"""The demo model that ships, and the text it was trained on."""

from __future__ import annotations

import ast
import json

import pytest
import torch
from transformers import AutoModelForCausalLM

from demo import corpus
from lp import Autoregressive, Engine, Jacobi, Lookahead, PromptLookup, Sampling
from tests.launch.commands import CHECKOUT

FOLDER = CHECKOUT / "demo" / "python-11m"
PROMPT = "import os\n\n\ndef read_lines(path):\n"


@pytest.fixture(scope="module")
def engine() -> Engine:
    return Engine.from_pretrained(str(FOLDER), device="cpu")


def test_held_out_packages_and_their_tests_are_not_trained_on() -> None:
    training, held_out = corpus.standard_library()
    for module in corpus.HELD_OUT:
        assert not [file for file in training if {module, f"test_{module}"} & {*file.parts, file.stem}]
    assert len(training) > 500 and len(held_out) > 50


def test_the_tokenizer_gives_every_text_back() -> None:
    tokenizer = corpus.train_tokenizer(["def f(x):\n    return x\n"] * 3, vocab_size=300)
    for text in ("def f(x):\n\treturn 'é😀'\n", " \r\n", "\x00\ufffd"):
        encoded = tokenizer.encode(text)
        assert encoded.ids[0] == tokenizer.token_to_id(corpus.BOS)
        assert tokenizer.decode(encoded.ids) == text


def test_size_and_card() -> None:
    assert sum(file.stat().st_size for file in FOLDER.iterdir()) < 32e6
    report = json.loads((FOLDER / "training.json").read_text())
    card = (FOLDER / "README.md").read_text()
    for figure in (
        f"{report['held_out_loss']:.2f}",
        f"{report['parameters'] / 1e6:.1f}M",
        f"{report['minutes']:.0f} min",
    ):
        assert figure in card


def test_all_methods_give_the_text_of_generate(engine: Engine) -> None:
    model = AutoModelForCausalLM.from_pretrained(FOLDER, dtype=torch.float32)
    prompt = torch.tensor([engine.request_builder.encode(PROMPT)])
    expected = model.generate(prompt, max_new_tokens=64, do_sample=False)[0, prompt.shape[1] :].tolist()
    for decode in (Autoregressive(), Jacobi(), PromptLookup(), Lookahead(), Lookahead(15, 5, 15)):
        completion = engine.generate(PROMPT, max_new_tokens=64, decode=decode, sampling=Sampling(seed=1))
        assert completion.token_ids == expected
        if isinstance(decode, Lookahead):
            assert completion.stats.tokens_per_step > 1.3


def test_sampled_text_looks_like_python(engine: Engine) -> None:
    """At least half of the sampled lines are Python on their own or open a block."""
    sampling = Sampling(temperature=0.8, seed=7)
    text = engine.generate(PROMPT, max_new_tokens=300, sampling=sampling).text
    lines = [line.strip() for line in text.splitlines()[1:-1] if line.strip()]
    assert lines
    assert sum(map(parses, lines)) >= 0.5 * len(lines), text


def parses(line: str) -> bool:
    for candidate in (line, f"{line} pass", f"{line}\n    pass", f"try: pass\n{line} pass", f"if x: pass\n{line} pass"):
        try:
            ast.parse(candidate)
        except SyntaxError:
            continue
        return True
    return False
