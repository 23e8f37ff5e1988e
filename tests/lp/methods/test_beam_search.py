"""decode=beam gives the sequences and scores of transformers' `generate(num_beams=...)` in float32."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from lp import Autoregressive, Beam, Engine, Sampling, Stopping
from lp.methods.registry import from_dict
from lp.request import BeamResult, Output
from tests.lp.test_lossless import make_prompt
from tests.slow import exhaustive_except

NUM_TOKENS = 12
EARLY = {"false": False, "true": True, "never": "never"}
SETTINGS = [
    {},
    {"length_penalty": 0.0, "early_stopping": "never"},
    {"length_penalty": 2.0, "early_stopping": "never", "num_return_sequences": 4},
    {"length_penalty": -1.0, "early_stopping": "true", "num_return_sequences": 2},
]


def expected(
    model: PreTrainedModel, prompt: list[int], eos: list[int] | None, settings: dict[str, Any]
) -> tuple[list[list[int]], list[float]]:
    """The new tokens and scores of transformers."""
    model.generation_config.eos_token_id = eos
    model.generation_config.pad_token_id = 0 if eos is None else eos[0]
    given = {**settings, "early_stopping": EARLY[settings.get("early_stopping", "false")]}
    inputs = torch.tensor([prompt])
    output = model.generate(
        inputs, attention_mask=torch.ones_like(inputs), num_beams=4, max_new_tokens=NUM_TOKENS, do_sample=False,
        return_dict_in_generate=True, output_scores=True, **given,
    )  # fmt: skip
    assert output.sequences_scores is not None
    return output.sequences[:, len(prompt) :].tolist(), output.sequences_scores.tolist()


def search(engine: Engine, prompt: list[int], eos: list[int] | None, **settings: Any) -> BeamResult:
    stopping = Stopping(NUM_TOKENS, stop_token_ids=eos or [], ignore_eos=True)
    done = engine.generate(prompt, decode=Beam(4, **settings), sampling=Sampling.greedy(), stopping=stopping)
    assert done.beams is not None and done.token_ids == done.beams.texts[0].token_ids
    return done.beams


def assert_same(engine: Engine, model: PreTrainedModel, prompts: list[list[int]], with_eos: bool) -> None:
    for number, prompt in enumerate(prompts):
        eos = list(range(2 + number % 3, 40, 7)) if with_eos else None  # so many that texts end in between
        settings = SETTINGS[number % len(SETTINGS)]
        sequences, scores = expected(model, prompt, eos, settings)
        found = search(engine, prompt, eos, **settings)
        assert [text.token_ids for text in found.texts] == [
            tokens[: len(text.token_ids)] for tokens, text in zip(sequences, found.texts, strict=True)
        ]
        assert [text.score for text in found.texts] == pytest.approx(scores, rel=1e-5, abs=1e-4)


@pytest.mark.parametrize("with_eos", [False, True])
@pytest.mark.parametrize("architecture", ["llama", "qwen3", "gpt2"])
def test_sequences_and_scores(
    architecture: str,
    with_eos: bool,
    engine_of: Callable[[str], Engine],
    reference_of: Callable[[str], PreTrainedModel],
) -> None:
    prompts = [make_prompt(length, seed=3) for length in (1, 5, 60, 17)]
    assert_same(engine_of(architecture), reference_of(architecture), prompts, with_eos)


@pytest.mark.parametrize("architecture", exhaustive_except(["llama", "qwen3", "gpt2"], "qwen3"))
def test_fifty_prompts(
    architecture: str, engine_of: Callable[[str], Engine], reference_of: Callable[[str], PreTrainedModel]
) -> None:
    prompts = [make_prompt(1 + 3 * number, seed=number) for number in range(50)]
    assert_same(engine_of(architecture), reference_of(architecture), prompts, with_eos=True)


def test_best_first_finds_the_same_text_with_fewer_calls(llama: Engine) -> None:
    settings = {"length_penalty": 0.0, "early_stopping": "never"}
    all_calls = [0, 0]
    for length in (1, 9, 40, 80):
        prompt, eos = make_prompt(length, seed=8), [4, 9, 13]
        found = [search(llama, prompt, eos, best_first=first, **settings) for first in (False, True)]
        assert found[0].texts[0].token_ids == found[1].texts[0].token_ids
        assert found[1].texts[0].score == pytest.approx(found[0].texts[0].score, abs=1e-4)
        assert found[1].num_calls <= found[0].num_calls
        all_calls = [total + one.num_calls for total, one in zip(all_calls, found, strict=True)]
    assert all_calls[1] < all_calls[0]


def test_beside_other_requests(llama: Engine) -> None:
    """Beam searches and other requests share steps."""
    prompts = [make_prompt(length, seed=5) for length in (8, 30, 50)]
    stopping = Stopping(NUM_TOKENS, ignore_eos=True)
    decodes = [Beam(3), Autoregressive(), Beam(2)]
    alone = [llama.generate(p, decode=d, sampling=Sampling.greedy(), stopping=stopping).token_ids
             for p, d in zip(prompts, decodes, strict=True)]  # fmt: skip
    for prompt, decode in zip(prompts, decodes, strict=True):
        request = llama.request_builder.build(prompt, decode, Sampling.greedy(), stopping)
        llama.add_request(request)
    found: dict[str, list[int]] = {}
    while not llama.is_idle:
        for output in llama.step():
            found.setdefault(output.request_id, []).extend(output.tokens)
    assert list(found.values()) == alone


def test_nothing_is_told_before_the_end(llama: Engine) -> None:
    stopping = Stopping(NUM_TOKENS, ignore_eos=True)
    *before, last = llama.stream(make_prompt(9), decode=Beam(3), sampling=Sampling.greedy(), stopping=stopping)
    assert not any(output.tokens or output.text or output.beams for output in before)
    assert last.finish_reason == "length" and len(last.tokens) == NUM_TOKENS and last.beams
    assert Output.from_dict(last.to_dict()).beams == last.beams


def test_settings_as_json() -> None:
    assert from_dict(Beam(3, 0.5).to_dict()) == Beam(3, 0.5)
    assert from_dict({"method": "beam", "length_penalty": 0}) == Beam(length_penalty=0)


def test_a_trace_has_the_tree_of_every_step(llama: Engine) -> None:
    stopping = Stopping(NUM_TOKENS, ignore_eos=True)
    done = llama.generate(make_prompt(9), decode=Beam(3), sampling=Sampling.greedy(), stopping=stopping, trace=True)
    assert [step.step for step in done.trace] == list(range(NUM_TOKENS))
    assert all(not step.accepted for step in done.trace) and done.trace[-1].emitted == done.token_ids
    assert max(len(step.tokens) for step in done.trace) > 3
