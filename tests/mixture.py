"""A random mixture of requests that share steps, and what each of them yields alone."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from lp import Auto, Autoregressive, Engine, Grammar, Jacobi, Lookahead, PromptLookup, Sampling, Stopping
from lp.request import Output, Request, TokenLogprob

DECODES = [Auto(), Auto(max_rows=24), Auto(rows=10), Autoregressive(), Lookahead(5, 4, 5), PromptLookup(), Jacobi(6)]
GREEDY: dict[str, Any] = {"temperature": 0.0}
SAMPLINGS: list[dict[str, Any]] = [
    GREEDY,
    GREEDY,
    {"temperature": 0.8},
    {"temperature": 1.0, "top_p": 0.9, "top_k": 40},
    {"temperature": 0.7, "min_p": 0.05, "presence_penalty": 0.5, "frequency_penalty": 0.3},
    {"temperature": 0.0, "repetition_penalty": 1.3, "no_repeat_ngram": 3},
    {"temperature": 0.0, "logprobs": 2},
    {"temperature": 1.1, "min_p": 0.1, "repetition_penalty": 1.2, "logprobs": 5},
    {"temperature": 0.0, "logit_bias": {9: 2.5, 40: -100.0}, "no_repeat_ngram": 2, "logprobs": 0},
    {"temperature": 0.9, "min_new_tokens": 6, "logit_bias": {7: 1.5}},
    {"temperature": 0.0, "bad_words": [[9], [40, 7]], "allowed_token_ids": [*range(1, 60)]},
]
GRAMMARS: list[Grammar | None] = [
    None,
    None,
    Grammar.json_schema({"type": "object", "properties": {"first": {"type": "string"}, "second": {"type": "integer"}}}),
    Grammar("regex", "(x = [a-f]{1,3}\n    ){2,40}return"),
    Grammar.choice(["return first", "return second", "def move(self, by):"]),
]


@dataclass
class Mixture:
    """Requests, and what happens to them.

    arrivals: the step before which each of them comes. cancelled: the step before which it is cancelled, if it is.
    """

    requests: list[Request]
    arrivals: list[int]
    cancelled: dict[str, int]
    texts: dict[str, str] = field(default_factory=dict)
    tokens: dict[str, list[int]] = field(default_factory=dict)
    logprobs: dict[str, list[TokenLogprob]] = field(default_factory=dict)
    prompt_logprobs: dict[str, list[TokenLogprob]] = field(default_factory=dict)
    ends: dict[str, str] = field(default_factory=dict)
    cached: dict[str, int] = field(default_factory=dict)

    def take(self, output: Output) -> None:
        """Notes what a request has yielded."""
        name = output.request_id
        self.texts[name] = self.texts.get(name, "") + output.text
        self.tokens.setdefault(name, []).extend(output.tokens)
        self.logprobs.setdefault(name, []).extend(output.logprobs or [])
        if output.prompt_logprobs is not None:
            assert name not in self.prompt_logprobs
            self.prompt_logprobs[name] = output.prompt_logprobs
        if output.finish_reason:
            self.ends[name] = output.finish_reason
            self.cached[name] = output.stats.cached_tokens


def make_mixture(
    engine: Engine,
    number: int,
    seed: int,
    most_prompt: int = 90,
    most_tokens: int = 40,
    beginning: list[int] | None = None,
) -> Mixture:
    """`number` requests: of all methods, greedy and sampled, with penalties, stops and grammars; some are cancelled.

    beginning: the first tokens of half of the prompts, which differ if None.
    """
    rng, scoring = random.Random(seed), random.Random(seed)
    # Some architectures' tokenizers have a token more than the test's model.
    has_grammars = len(engine.checkpoint.tokenizer) <= engine.checkpoint.vocab_size
    requests = []
    for index in range(number):
        prompt = [
            rng.randrange(2, 200) for _ in range(rng.choice([1, 2, 5, rng.randrange(3, most_prompt), most_prompt]))
        ]
        prompt = prompt * rng.choice([1, 1, 2])
        if beginning and scoring.random() < 0.5:
            prompt = beginning + prompt
        stopping = Stopping(rng.randrange(1, most_tokens), stop=rng.choice([[], [], ["a"], ["e ", "th"]]))
        sampling = Sampling().changed({**rng.choice(SAMPLINGS), "seed": rng.randrange(1000)})
        if scoring.random() < 0.3:
            sampling.prompt_logprobs = scoring.choice([0, 2])
        if sampling.min_new_tokens and sampling.min_new_tokens > (stopping.max_new_tokens or 0):
            sampling.min_new_tokens = stopping.max_new_tokens
        requests.append(
            engine.request_builder.build(
                prompt, rng.choice(DECODES), sampling, stopping, request_id=str(index),
                priority=rng.choice([0.5, 1, 3]), grammar=rng.choice(GRAMMARS) if has_grammars else None,
            )
        )  # fmt: skip
    arrivals = sorted(rng.randrange(number) for _ in requests)
    cancelled = {str(index): arrivals[index] + rng.randrange(12) for index in range(number) if rng.random() < 0.12}
    return Mixture(requests, arrivals, cancelled)


def run_mixture(engine: Engine, mixture: Mixture, before_step: Callable[[int], None] = lambda step: None) -> Mixture:
    """Runs the requests together. before_step: called before each step with its number."""
    step, left = 0, list(zip(mixture.arrivals, mixture.requests, strict=True))
    while left or not engine.is_idle:
        while left and left[0][0] <= step:
            if refusal := engine.add_request(left.pop(0)[1]):
                mixture.take(refusal)
        for name, at in mixture.cancelled.items():
            if at == step and (output := engine.abort(name)):
                mixture.take(output)
        before_step(step)
        for output in engine.step() if not engine.is_idle else []:
            mixture.take(output)
        step += 1
    return mixture


def check_mixture(mixture: Mixture, alone: Engine) -> None:
    """Asserts that each request has yielded what it yields alone, or the beginning of it if it was cancelled."""
    assert set(mixture.ends) == {request.id for request in mixture.requests}
    for request in mixture.requests:
        expected = alone.generate(
            request.prompt, decode=Autoregressive(), sampling=request.sampling, stopping=request.stopping,
            grammar=request.grammar,
        )  # fmt: skip
        found, end = mixture.tokens[request.id], mixture.ends[request.id]
        if end == "cancelled":
            assert found == expected.token_ids[: len(found)], request
        else:
            assert (found, mixture.texts[request.id], end) == (
                expected.token_ids, expected.text, expected.finish_reason
            ), request  # fmt: skip
            check_logprobs(mixture.logprobs[request.id], expected.logprobs or [])
            assert (request.id in mixture.prompt_logprobs) == (expected.prompt_logprobs is not None), request
            check_logprobs(mixture.prompt_logprobs.get(request.id, []), expected.prompt_logprobs or [])


def check_logprobs(found: list[TokenLogprob], expected: list[TokenLogprob]) -> None:
    """Rounding may differ, as other rows are beside a row."""
    for one, other in zip(found, expected, strict=True):
        assert one.token == other.token
        values, others = ([entry.logprob, *(value for _, value in entry.top)] for entry in (one, other))
        assert values == pytest.approx(others, abs=1e-3)
