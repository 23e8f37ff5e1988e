"""Requests are complete and checked; every refusal names the value and what to do."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

import pytest
from transformers import GenerationConfig

from lp import Auto, Autoregressive, DecodeLimits, Engine, Jacobi, Lookahead, PromptLookup, Sampling, Stopping
from lp.engine.input import RequestBuilder
from lp.methods.registry import from_dict
from lp.request import DecodingMethod, Request
from lp.sampling.settings import LARGEST_SEED
from tests.models import BOS, CONTEXT, EOS, VOCAB_SIZE


@pytest.fixture
def request_builder(llama: Engine) -> RequestBuilder:
    return RequestBuilder(llama.checkpoint)


def test_defaults_are_filled_in(request_builder: RequestBuilder) -> None:
    request = request_builder.build("def f(x):")
    assert request.prompt == request_builder.checkpoint.tokenizer.encode("def f(x):")
    assert request.decode == Auto()
    assert request.stopping.max_new_tokens == CONTEXT - len(request.prompt)
    left_open = {f.name for f in dataclasses.fields(Sampling) if getattr(request.sampling, f.name) is None}
    assert left_open == {"logprobs", "prompt_logprobs"}
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


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ("", "the prompt is empty; give at least one character"),
        ([], "the prompt is empty"),
        ([3, VOCAB_SIZE], f"token id {VOCAB_SIZE}; ids are integers from 0 to {VOCAB_SIZE - 1}"),
        ([-1], "token id -1"),
        ([1.5], "token id 1.5"),
        (["a"], "token id 'a'"),
        ([True], "token id True"),
        ("a\ud800b", "character 1 is a lone surrogate"),
        ([5] * CONTEXT, f"the prompt has {CONTEXT} tokens, which leaves no room .* {CONTEXT} tokens; shorten"),
        ("x" * (CONTEXT + 5), f"the prompt has {CONTEXT + 5} tokens"),
    ],
)
def test_unusable_prompts_are_refused(request_builder: RequestBuilder, prompt: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        request_builder.build(prompt)


@pytest.mark.parametrize(
    ("sampling", "message"),
    [
        (Sampling(temperature=-0.1), "temperature=-0.1 is out of range: it must be from 0.0 to 100.0"),
        (Sampling(temperature=math.nan), "temperature=nan"),
        (Sampling(temperature=1e-40), "temperature=1e-40 would overflow; use temperature=0"),
        (Sampling(temperature=math.inf), "temperature=inf"),
        (Sampling(top_k=-1), "top_k=-1"),
        (Sampling(top_p=0.0), "top_p=0 leaves no token"),
        (Sampling(top_p=1.1), "top_p=1.1"),
        (Sampling(min_p=-1.0), "min_p=-1.0"),
        (Sampling(repetition_penalty=0.0), "repetition_penalty=0.0"),
        (Sampling(presence_penalty=2.5), "presence_penalty=2.5 .* from -2.0 to 2.0"),
        (Sampling(frequency_penalty=-2.5), "frequency_penalty=-2.5"),
        (Sampling(no_repeat_ngram=-1), "no_repeat_ngram=-1"),
        (Sampling(min_new_tokens=-1), "min_new_tokens=-1"),
        (Sampling(seed=-1), "seed=-1"),
        (Sampling(seed=LARGEST_SEED + 1), f"seed={LARGEST_SEED + 1}"),
        (Sampling(logprobs=21), "logprobs=21 is out of range: it must be from 0 to 20"),
        (Sampling(logit_bias={VOCAB_SIZE: 1.0}), f"logit_bias names token {VOCAB_SIZE}, .* ids 0 to {VOCAB_SIZE - 1}"),
        (Sampling(logit_bias={3: 101.0}), "logit_bias of token 3 is 101.0; it must be from -100 to 100"),
        (Sampling(logit_bias={3: math.nan}), "logit_bias of token 3 is nan"),
    ],
)
def test_sampling_out_of_range_is_refused(request_builder: RequestBuilder, sampling: Sampling, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        request_builder.build("a", sampling=sampling)
    with pytest.raises(ValueError, match=message):
        RequestBuilder(request_builder.checkpoint, sampling=sampling)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (Lookahead(window=0), "decode.window=0 is out of range for lookahead: it must be from 1 to 128"),
        (Lookahead(window=129), "decode.window=129"),
        (Lookahead(ngram=1), "decode.ngram=1 is out of range for lookahead: it must be from 2 to 32"),
        (Lookahead(ngram=33), "decode.ngram=33"),
        (Lookahead(guesses=0), "decode.guesses=0"),
        (Lookahead(guesses=257), "decode.guesses=257"),
        (Lookahead(pool_size=0), "decode.pool_size=0"),
        (Lookahead(pool_per_token=0), "decode.pool_per_token=0"),
        (Jacobi(0), "decode.window=0 is out of range for jacobi"),
        (Jacobi("many"), "decode.window=many must be a number of guesses, or auto"),
        (PromptLookup(ngram=1), "decode.ngram=1 is out of range for prompt_lookup"),
        (Lookahead(128, 32, 200), "up to 10169 rows a step, more than the limit of 4096; use a smaller"),
    ],
)
def test_decode_settings_out_of_range_are_refused(
    request_builder: RequestBuilder, settings: DecodingMethod, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        request_builder.build("a", settings)
    with pytest.raises(ValueError, match=message):
        RequestBuilder(request_builder.checkpoint, settings)


def test_limits_are_the_servers(llama: Engine) -> None:
    request_builder = RequestBuilder(llama.checkpoint, Autoregressive(), limits=DecodeLimits(window=4))
    request_builder.build("a", Lookahead(window=4))
    with pytest.raises(ValueError, match=r"decode.window=5 .* from 1 to 4"):
        request_builder.build("a", Lookahead(window=5))


def test_more_new_tokens_than_the_context_has_room_for(request_builder: RequestBuilder) -> None:
    message = f"10 tokens and max_new_tokens={CONTEXT} do not fit .* ask for at most {CONTEXT - 10} new tokens"
    with pytest.raises(ValueError, match=message):
        request_builder.build([5] * 10, stopping=Stopping(max_new_tokens=CONTEXT))
    exact = request_builder.build([5] * 10, stopping=Stopping(max_new_tokens=CONTEXT - 10))
    assert exact.stopping.max_new_tokens == CONTEXT - 10


def test_min_new_tokens_above_max_new_tokens(request_builder: RequestBuilder) -> None:
    with pytest.raises(ValueError, match="min_new_tokens=6 is more than max_new_tokens=5"):
        request_builder.build("a", sampling=Sampling(min_new_tokens=6), stopping=Stopping(max_new_tokens=5))


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


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"method": "magic"},
            "'magic' is unknown; it is one of auto, autoregressive, jacobi",
        ),
        ({"method": 3}, "decode method 3 is unknown"),
        ({"method": "jacobi", "ngram": 3}, "decode.ngram is not a setting of jacobi; it has window"),
        ({"method": "autoregressive", "window": 3}, "not a setting of autoregressive; it has none"),
        ({"method": "lookahead", "window": "7"}, "decode.window must be int, not '7'"),
        ({"method": "lookahead", "window": True}, "decode.window must be int, not True"),
        ({"method": "lookahead", "prompt_drafts": 1}, "decode.prompt_drafts must be bool, not 1"),
    ],
)
def test_wrong_decode_settings_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        from_dict(values)


def test_decode_settings_left_out_come_from_the_same_methods_defaults() -> None:
    defaults = Lookahead(window=9, guesses=4)
    assert from_dict({"guesses": 6}, defaults) == Lookahead(window=9, guesses=6)
    assert from_dict({"method": "jacobi"}, defaults) == Jacobi()
    assert from_dict({}) == Auto()
