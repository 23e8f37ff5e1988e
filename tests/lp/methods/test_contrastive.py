"""decode=contrastive gives the tokens of the paper's contrastive decoding, whatever method drafts."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from lp import Auto, Beam, BestOf, Contrastive, Engine, Sampling, SecondModel, Stopping
from lp.methods.inner import INNER
from lp.methods.registry import from_dict
from lp.sampling.contrast import FAR, Contrast, contrast
from tests.lp.test_lossless import make_prompt
from tests.slow import slow_except

NUM_TOKENS = 20
PROMPTS = [make_prompt(length, seed=4) for length in (1, 7, 90)]


@pytest.fixture(scope="module")
def engine(checkpoint_folder: Callable[[str], Path]) -> Engine:
    """A llama whose amateur is a qwen2 with other weights."""
    second = SecondModel(str(checkpoint_folder("qwen2")))
    return Engine.from_pretrained(str(checkpoint_folder("llama")), device="cpu", step_times="off", second=second)


def plain(expert: PreTrainedModel, amateur: PreTrainedModel, prompt: list[int], decode: Contrastive) -> list[int]:
    """Greedy contrastive decoding token by token (arXiv 2210.15097, equations 2 and 3), on transformers alone."""
    tokens = list(prompt)
    with torch.inference_mode():
        for _ in range(NUM_TOKENS):
            inputs = torch.tensor([tokens])
            of_expert = expert(inputs).logits[0, -1].softmax(0)
            of_amateur = (amateur(inputs).logits[0, -1] / decode.amateur_temperature).softmax(0)
            scores = of_expert.log() - decode.weight * of_amateur.log()
            scores[of_expert < decode.alpha * of_expert.max()] = -math.inf
            tokens.append(int(scores.argmax()))
    return tokens[len(prompt) :]


def decoded(engine: Engine, prompt: list[int], decode: Contrastive, **sampling: float) -> list[int]:
    settings = Sampling(**{"temperature": 0.0, "seed": 3, **sampling})  # type: ignore[arg-type]
    stopping = Stopping(NUM_TOKENS, ignore_eos=True)
    return engine.generate(prompt, decode=decode, sampling=settings, stopping=stopping).token_ids


@pytest.mark.parametrize("inner", slow_except(INNER, "lookahead"))
def test_the_tokens_are_those_of_the_paper(
    inner: str, engine: Engine, reference_of: Callable[[str], PreTrainedModel]
) -> None:
    expert, amateur = reference_of("llama"), reference_of("qwen2")
    for settings in ({}, {"alpha": 0.3, "weight": 1 / 3, "amateur_temperature": 0.5}):
        decode = Contrastive(inner, **settings)
        for prompt in PROMPTS:
            found = decoded(engine, prompt, decode)
            assert found == plain(expert, amateur, prompt, decode)
            assert found != engine.generate(prompt, max_new_tokens=NUM_TOKENS, temperature=0.0).token_ids


def test_the_first_layers_can_be_the_amateur(
    checkpoint_folder: Callable[[str], Path], reference_of: Callable[[str], PreTrainedModel]
) -> None:
    engine = Engine.from_pretrained(
        str(checkpoint_folder("llama")), device="cpu", step_times="off", second=SecondModel(layers=1)
    )
    texts = [decoded(engine, PROMPTS[1], Contrastive(inner)) for inner in ("auto", "autoregressive")]
    assert texts[0] == texts[1] != decoded(engine, PROMPTS[1], Contrastive(weight=0.0))


def test_sampled_tokens_do_not_depend_on_the_method_inside(engine: Engine) -> None:
    sampling = {"temperature": 0.8, "top_p": 0.95, "repetition_penalty": 1.2}
    texts = [decoded(engine, PROMPTS[2], Contrastive(inner), **sampling) for inner in INNER]
    assert texts == [texts[0]] * len(INNER)
    assert texts[0] != decoded(engine, PROMPTS[2], Contrastive(), **{**sampling, "seed": 4})


def test_the_model_at_a_higher_temperature_is_a_weak_amateur(llama: Engine) -> None:
    """Its scores rise with the model's logits: the greedy text stays, and sampling is that of another temperature."""
    greedy = llama.generate(PROMPTS[1], max_new_tokens=NUM_TOKENS, temperature=0.0).token_ids
    decode = Contrastive(alpha=0.2, amateur_temperature=4.0)
    assert decoded(llama, PROMPTS[1], decode)[: len(greedy)] == greedy
    scale = (1 - decode.weight / decode.amateur_temperature) / 0.9
    same = Sampling(temperature=1 / scale, min_p=decode.alpha**scale, seed=8)
    stopping = Stopping(NUM_TOKENS, ignore_eos=True)
    expected = llama.generate(PROMPTS[1], sampling=same, stopping=stopping).token_ids
    assert decoded(llama, PROMPTS[1], decode, temperature=0.9, seed=8) == expected
    assert decoded(llama, PROMPTS[1], decode, temperature=0.9, seed=9) != expected


def test_beside_other_requests(engine: Engine) -> None:
    """Requests that ask something of the second model share steps with those that do not."""
    prompts = [make_prompt(length, seed=5) for length in (8, 90, 50, 20, 30)]
    decodes = [Contrastive(), Auto(), Contrastive("lookahead", weight=0.5), Beam(2), BestOf(num_samples=2)]
    samplings = [Sampling(temperature=0.0 if not isinstance(one, BestOf) else 0.7, seed=1) for one in decodes]
    stopping = Stopping(NUM_TOKENS, ignore_eos=True)
    given = list(zip(prompts, decodes, samplings, strict=True))
    alone = [engine.generate(p, decode=d, sampling=s, stopping=stopping).token_ids for p, d, s in given]
    requests = [engine.request_builder.build(p, d, s, stopping) for p, d, s in given]
    found: dict[str, list[int]] = {request.id: [] for request in requests}
    for request in requests:
        engine.add_request(request)
    while not engine.is_idle:
        for output in engine.step():
            found[output.request_id] += output.tokens
    assert list(found.values()) == alone
    assert not engine.runner.second.states  # type: ignore[attr-defined]


def test_what_is_lost_is_computed_again(engine: Engine) -> None:
    """Both models' keys and values are dropped in the middle of a text."""
    prompt, stopping = PROMPTS[2], Stopping(NUM_TOKENS, ignore_eos=True)
    expected = decoded(engine, prompt, Contrastive())
    request = engine.request_builder.build(prompt, Contrastive(), Sampling(temperature=0.0, seed=3), stopping)
    engine.add_request(request)
    found: list[int] = []
    while not engine.is_idle:
        for output in engine.step():
            found += output.tokens
        for generation in engine.scheduler:
            if len(found) % 3 == 0:
                engine.runner.drop(generation.sequence)
                generation.forget_computed()
    assert found == expected


def test_log_probabilities_are_the_models_own(engine: Engine, llama: Engine) -> None:
    done = engine.generate(PROMPTS[1], decode=Contrastive(), max_new_tokens=4, temperature=0.0, logprobs=1)
    assert done.logprobs and done.logprobs[0].top
    plainly = llama.generate(PROMPTS[1], max_new_tokens=1, temperature=0.0, logprobs=1).logprobs
    assert plainly and done.logprobs[0].top[0] == pytest.approx(plainly[0].top[0], abs=1e-4)


def test_a_prompt_can_be_scored(engine: Engine, llama: Engine) -> None:
    """By the model alone; the second one computes the prompt when it is needed."""
    settings = {"max_new_tokens": 6, "temperature": 0.0}
    done = engine.generate(PROMPTS[2], decode=Contrastive(), prompt_logprobs=0, **settings)
    assert done.token_ids == engine.generate(PROMPTS[2], decode=Contrastive(), **settings).token_ids
    expected = llama.generate(PROMPTS[2], prompt_logprobs=0, **settings).prompt_logprobs
    assert done.prompt_logprobs and expected
    assert [one.logprob for one in done.prompt_logprobs] == pytest.approx([one.logprob for one in expected], abs=1e-4)


def scores(expert: Tensor, amateur: Tensor, alpha: float = 0.1) -> list[float]:
    return contrast(expert[None], amateur[None], Contrast(alpha, 1.0, 1.0, True))[0].tolist()


def test_tokens_that_are_not_plausible_come_last_but_are_there() -> None:
    """Where a grammar leaves no other token, the likeliest of them must be chosen."""
    expert = torch.tensor([0.5, 0.3, 0.04, 0.01]).log()
    found = scores(expert, torch.tensor([0.9, 0.001, 0.09, 0.009]).log())
    assert sorted(range(4), key=lambda token: -found[token]) == [1, 0, 2, 3]
    assert found[2] < -FAR / 2 and found[1] == pytest.approx(math.log((0.3 / 0.85) / 0.001), abs=1e-4)


@pytest.mark.parametrize("width", [2, 6])
def test_an_amateur_of_another_width(width: int) -> None:
    """Vocabularies are padded; a token that the amateur lacks gets no bonus."""
    expert, amateur = torch.zeros(4), torch.zeros(width)
    found = scores(expert, amateur)
    assert found == pytest.approx([-math.log(4) + math.log(width)] * min(4, width) + [-math.log(4)] * (4 - width))


def test_an_amateur_is_asked_for_before_anything_is_loaded() -> None:
    with pytest.raises(ValueError, match=r"second\.path"):
        Engine.from_pretrained("nowhere", decode=Contrastive())


def test_settings_as_json() -> None:
    assert from_dict(Contrastive("jacobi", 0.2).to_dict()) == Contrastive("jacobi", 0.2)
    assert from_dict({"method": "contrastive", "alpha": 0}) == Contrastive(alpha=0)
