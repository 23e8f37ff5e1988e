"""/v1/completions, with the openai package as the client."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lp import Autoregressive, Engine, Sampling, Stopping
from lp.model.checkpoint import Checkpoint
from tests.launch.server.harness import Running, serving
from tests.lp.text.test_detokenizer import build_byte_fallback_tokenizer

PROMPT = "def fibonacci(n):"


@pytest.fixture(scope="module")
def ask(shared: Running):
    client = shared.openai()

    def create(prompt: object = PROMPT, **options):
        return client.completions.create(model=shared.model, prompt=prompt, **{"temperature": 0, **options})  # type: ignore

    return create


def expected(shared: Running, **options):
    stopping = options.pop("stopping", Stopping(24))
    sampling = options.pop("sampling", Sampling(temperature=0))
    return Engine(shared.engine.checkpoint).generate(
        PROMPT, sampling=sampling, stopping=stopping, decode=Autoregressive()
    )


def test_text_equals_that_of_the_engine(shared: Running, ask):
    answer, reference = ask(max_tokens=24), expected(shared)
    assert answer.object == "text_completion" and answer.model == shared.model and answer.id.startswith("cmpl-")
    assert answer.choices[0].text == reference.text
    assert answer.choices[0].finish_reason == reference.finish_reason
    assert answer.choices[0].logprobs is None


def test_usage_counts_drafts(ask):
    answer = ask(max_tokens=40)
    usage, figures = answer.usage, answer.lookahead
    assert usage.completion_tokens == figures["tokens"] == 40
    assert usage.total_tokens == usage.prompt_tokens + 40
    details = usage.completion_tokens_details
    assert details.accepted_prediction_tokens == sum(figures["accepted"].values()) > 0
    assert details.rejected_prediction_tokens == sum(figures["proposed"].values()) - details.accepted_prediction_tokens
    assert figures["decode"]["method"] == "auto" and figures["steps"] < 40


def test_default_number_of_tokens(ask):
    assert ask(extra_body={"ignore_eos": True}).usage.completion_tokens == 16


def test_token_id_prompt_is_the_text_prompt(shared: Running, ask):
    tokens = shared.server.context.checkpoint.tokenizer.encode(PROMPT)
    assert ask(tokens, max_tokens=8).choices[0].text == ask(max_tokens=8).choices[0].text
    assert ask([tokens], max_tokens=8).choices[0].text == ask([PROMPT], max_tokens=8).choices[0].text


def test_stop_string_ends_the_text_and_is_not_part_of_it(ask):
    text = ask(max_tokens=24).choices[0].text
    stop = text[5:8]
    choice = ask(max_tokens=24, stop=stop).choices[0]
    assert choice.text == text[: text.index(stop)] and choice.finish_reason == "stop"
    assert ask(max_tokens=24, stop=["never to be found", stop]).choices[0].text == choice.text


def test_stop_token_ends_the_text(shared: Running, ask):
    tokens = expected(shared).token_ids
    choice = ask(max_tokens=24, extra_body={"stop_token_ids": [tokens[3]]}).choices[0]
    assert choice.finish_reason == "stop"
    assert choice.text == shared.server.context.checkpoint.tokenizer.decode(tokens[: tokens.index(tokens[3])])


@pytest.mark.parametrize("method", ["autoregressive", "jacobi", "prompt_lookup", "lookahead"])
def test_seed_gives_the_same_text_with_every_method(shared: Running, ask, method: str):
    options = {"max_tokens": 24, "temperature": 0.9, "top_p": 0.95, "seed": 7}
    text = ask(**options, extra_body={"decode": {"method": method}}).choices[0].text
    assert text == ask(**options).choices[0].text
    reference = expected(shared, sampling=Sampling(temperature=0.9, top_p=0.95, seed=7))
    assert text == reference.text != ask(**{**options, "seed": 8}).choices[0].text


def test_sampling_extensions_reach_the_engine(shared: Running, ask):
    options = {"top_k": 5, "min_p": 0.02, "repetition_penalty": 1.3, "no_repeat_ngram": 3}
    body = {**options, "min_tokens": 20, "ignore_eos": True}
    answer = ask(max_tokens=24, temperature=1.2, seed=3, presence_penalty=0.5, frequency_penalty=-0.5, extra_body=body)
    sampling = Sampling(
        temperature=1.2, seed=3, presence_penalty=0.5, frequency_penalty=-0.5, min_new_tokens=20, **options
    )
    reference = expected(shared, sampling=sampling, stopping=Stopping(24, ignore_eos=True))
    assert answer.choices[0].text == reference.text
    assert answer.lookahead["seed"] == 3


def test_logit_bias(ask):
    answer = ask(max_tokens=4, logit_bias={"70": 100}, logprobs=0)
    assert len(set(answer.choices[0].logprobs.tokens)) == 1


def test_logprobs(shared: Running, ask):
    names = shared.server.context.names
    bias = {
        token: -100.0 for token in range(shared.engine.checkpoint.model.vocab_size) if names.bytes_of(token)[0] > 127
    }
    answer = ask(max_tokens=12, logprobs=3, logit_bias=bias)
    sampling = Sampling(temperature=0, logprobs=3, logit_bias=bias)
    reference = expected(shared, sampling=sampling, stopping=Stopping(12))
    found = answer.choices[0].logprobs
    assert found.token_logprobs == pytest.approx([one.logprob for one in reference.logprobs], abs=1e-4)
    assert "".join(found.tokens) == answer.choices[0].text
    assert len(found.tokens) == len(found.top_logprobs) == len(found.text_offset) == 12
    for token, logprob, top, offset in zip(
        found.tokens, found.token_logprobs, found.top_logprobs, found.text_offset, strict=True
    ):
        assert top[token] == logprob and len(top) in (3, 4)
        assert answer.choices[0].text[offset:].startswith(token)


def test_logprobs_of_a_sampled_token_are_among_the_alternatives(ask):
    found = ask(max_tokens=12, logprobs=1, temperature=2.0, seed=5).choices[0].logprobs
    assert all(token in top and len(top) <= 2 for token, top in zip(found.tokens, found.top_logprobs, strict=True))
    assert any(len(top) == 2 for top in found.top_logprobs)


def test_echo_puts_the_prompt_first(shared: Running, ask):
    text = ask(max_tokens=8).choices[0].text
    assert ask(max_tokens=8, echo=True).choices[0].text == PROMPT + text
    tokens = shared.server.context.checkpoint.tokenizer.encode(PROMPT)
    assert ask(tokens, max_tokens=8, echo=True).choices[0].text == PROMPT + text


def test_byte_fallback_tokenizer(checkpoint: Checkpoint):
    """The space after the prompt is kept, and no sequence of bytes stops the server."""
    tokenizer = build_byte_fallback_tokenizer()
    world = tokenizer.get_vocab()["▁world"]
    with serving(replace(checkpoint, tokenizer=tokenizer)) as running:
        options = {"model": running.model, "prompt": "hello", "logit_bias": {world: 100}, "temperature": 0}
        create = running.openai().completions.create
        assert create(**options, max_tokens=2).choices[0].text == " world world"
        assert create(**options, max_tokens=2, echo=True).choices[0].text == "hello world world"
        chunks = create(**options, max_tokens=2, echo=True, stream=True)
        assert "".join(chunk.choices[0].text for chunk in chunks) == "hello world world"
        wild = {"temperature": 2.0, "max_tokens": 200, "logprobs": 0, "extra_body": {"ignore_eos": True}}
        for seed in range(3):
            answer = create(model=running.model, prompt="hello", seed=seed, **wild)
            assert answer.usage.completion_tokens == 200 and "\ufffd" in answer.choices[0].text
        running.assert_serves()


def test_harmless_fields_are_ignored(shared: Running, ask):
    assert ask(max_tokens=2, user="somebody", n=1, best_of=1, suffix="").usage.completion_tokens == 2
    assert shared.post("/v1/completions", prompt="a", max_tokens=2, model=None, store=True).status_code == 200
