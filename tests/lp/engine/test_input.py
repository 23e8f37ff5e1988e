"""Requests are complete. What is refused: see tests/golden/test_errors.py."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
from transformers import GenerationConfig

from lp import Auto, Autoregressive, Engine, Jacobi, Lookahead, PromptLookup, Sampling, Stopping
from lp.engine.input import RequestBuilder
from lp.methods.registry import from_dict
from lp.request import DecodingMethod, Request
from lp.sampling.settings import LARGEST_SEED
from tests.models import BOS, CONTEXT, EOS


@pytest.fixture
def request_builder(llama: Engine) -> RequestBuilder:
    return RequestBuilder(llama.checkpoint)


def test_defaults_are_filled_in(request_builder: RequestBuilder) -> None:
    request = request_builder.build("def f(x):")
    assert request.prompt == request_builder.checkpoint.tokenizer.encode("def f(x):")
    assert request.decode == Auto()
    assert request.stopping.max_new_tokens == CONTEXT - len(request.prompt)
    left_open = {f.name for f in dataclasses.fields(Sampling) if getattr(request.sampling, f.name) is None}
    assert left_open == {"logprobs", "prompt_logprobs", "allowed_token_ids"}
    assert request.sampling.temperature == 0.0


def test_requests_have_names_and_seeds_of_their_own(request_builder: RequestBuilder) -> None:
    first, second = request_builder.build("a"), request_builder.build("a")
    assert first.id != second.id
    assert first.sampling.seed != second.sampling.seed
    assert request_builder.build("a", request_id="mine").id == "mine"


def test_a_request_wins_over_the_server_and_the_server_over_the_checkpoint(llama: Engine) -> None:
    request_builder = RequestBuilder(llama.checkpoint, Jacobi(3), Sampling(temperature=0.5, top_k=7, seed=11))
    assert request_builder.build("a").decode == Jacobi(3)
    sampling = request_builder.build("a", PromptLookup(), Sampling(top_k=9, top_p=0.5)).sampling
    assert (sampling.temperature, sampling.top_k, sampling.top_p, sampling.seed) == (0.5, 9, 0.5, 11)


def test_changing_one_request_changes_no_other(request_builder: RequestBuilder) -> None:
    request_builder.build("a").sampling.logit_bias[3] = 5.0
    assert request_builder.build("a").sampling.logit_bias == {}


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, {"temperature": 0.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "repetition_penalty": 1.0}),
        ({"do_sample": True, "temperature": 0.6, "top_p": 0.9}, {"temperature": 0.6, "top_p": 0.9}),
        ({"do_sample": True, "top_k": 20, "min_p": 0.1}, {"temperature": 1.0, "top_k": 20, "min_p": 0.1}),
        ({"do_sample": False, "temperature": 0.6}, {"temperature": 0.0}),
        ({"repetition_penalty": 1.2, "no_repeat_ngram_size": 3}, {"repetition_penalty": 1.2, "no_repeat_ngram": 3}),
    ],
)
def test_the_checkpoints_generation_config_gives_defaults(config: dict[str, Any], expected: dict[str, Any]) -> None:
    sampling = Sampling().with_defaults(GenerationConfig(**config))
    assert {name: getattr(sampling, name) for name in expected} == expected
    assert Sampling(temperature=0.25).with_defaults(GenerationConfig(**config)).temperature == 0.25


def test_more_new_tokens_than_the_context_has_room_for(request_builder: RequestBuilder) -> None:
    with pytest.raises(ValueError):
        request_builder.build([5] * 10, stopping=Stopping(max_new_tokens=CONTEXT - 9))
    exact = request_builder.build([5] * 10, stopping=Stopping(max_new_tokens=CONTEXT - 10))
    assert exact.stopping.max_new_tokens == CONTEXT - 10


def test_the_last_place_in_the_context_can_be_filled(llama: Engine) -> None:
    assert len(llama.generate([5] * (CONTEXT - 1), max_new_tokens=None).token_ids) == 1


def test_special_tokens_may_be_prompts(llama: Engine) -> None:
    for token in (BOS, EOS):
        assert len(llama.generate([token], stopping=Stopping(3, ignore_eos=True)).token_ids) == 3


@pytest.mark.parametrize(
    "settings",
    [Autoregressive(), Jacobi(3), Jacobi("auto"), PromptLookup(3, 4, False), Lookahead(3, 4, 5, window_drafts=False)],
    ids=lambda settings: settings.method,
)
def test_a_request_crosses_ranks_as_json(request_builder: RequestBuilder, settings: DecodingMethod) -> None:
    sampling = Sampling(temperature=0.7, logit_bias={3: -1.5, 4: 2.0}, seed=LARGEST_SEED, logprobs=2)
    stopping = Stopping(9, ["é\n", "</x>"], [7], ignore_eos=True)
    request = request_builder.build("héllo 😀", settings, sampling, stopping)
    assert Request.from_dict(json.loads(json.dumps(request.to_dict())), request.decode) == request


def test_decode_settings_left_out_come_from_the_same_methods_defaults() -> None:
    defaults = Lookahead(window=9, guesses=4)
    assert from_dict({"guesses": 6}, defaults) == Lookahead(window=9, guesses=6)
    assert from_dict({"method": "jacobi"}, defaults) == Jacobi()
    assert from_dict({}) == Auto()
