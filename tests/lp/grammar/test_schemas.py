"""Answers under hundreds of schemas of many kinds: every one that ends is what its schema says."""

from __future__ import annotations

import json

import pytest

from benchmarks.structured.schemas import faults, make_schema
from lp import Engine, Grammar, Sampling, Stopping
from lp.request import Completion
from tests.slow import exhaustive_except

AT_ONCE = 60


@pytest.mark.parametrize("num_schemas", exhaustive_except([120, 300], 120))
def test_every_answer_that_ends_is_valid(num_schemas: int, llama: Engine) -> None:
    engine, schemas = Engine(llama.checkpoint), [make_schema(seed) for seed in range(num_schemas)]
    answers = [Completion() for _ in schemas]
    for first in range(0, num_schemas, AT_ONCE):
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
            for output in engine.step():
                answers[int(output.request_id)].extend(output)
    ended = [number for number, answer in enumerate(answers) if answer.finish_reason == "stop"]
    assert {answer.finish_reason for answer in answers} <= {"stop", "length"}
    assert len(ended) > 0.8 * num_schemas
    for number in ended:
        found = faults(schemas[number], json.loads(answers[number].text))
        assert not found, (schemas[number], answers[number].text)
