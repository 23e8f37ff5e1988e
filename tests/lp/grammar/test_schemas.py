"""Answers under 300 schemas of many kinds: every one that ends is what its schema says."""

from __future__ import annotations

import json

import pytest

from benchmarks.structured.schemas import faults, make_schema
from lp import Engine, Grammar, Sampling, Stopping
from lp.request import Completion

NUM_SCHEMAS, AT_ONCE = 300, 60


@pytest.mark.slow
def test_every_answer_that_ends_is_valid(llama: Engine) -> None:
    engine, schemas = Engine(llama.checkpoint), [make_schema(seed) for seed in range(NUM_SCHEMAS)]
    answers = [Completion() for _ in schemas]
    for first in range(0, NUM_SCHEMAS, AT_ONCE):
        for number in range(first, first + AT_ONCE):
            engine.add_request(
                engine.request_builder.build(
                    [5, 6, 7 + number % 90],
                    sampling=Sampling(temperature=0.9 * (number % 2), seed=number),
                    stopping=Stopping(300),
                    request_id=str(number),
                    grammar=Grammar.json_schema(schemas[number]),
                )
            )
        while not engine.is_idle:
            for progress in engine.step():
                answers[int(progress.request_id)].extend(progress)
    ended = [number for number, answer in enumerate(answers) if answer.finish_reason == "stop"]
    assert {answer.finish_reason for answer in answers} <= {"stop", "length"}
    assert len(ended) > 0.8 * NUM_SCHEMAS
    for number in ended:
        found = faults(schemas[number], json.loads(answers[number].text))
        assert not found, (schemas[number], answers[number].text)
