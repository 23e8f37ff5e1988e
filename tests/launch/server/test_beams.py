"""Beam search over HTTP: the texts that were asked for, and clear refusals of what a search cannot have beside it."""

from __future__ import annotations

import pytest

from tests.launch.server.harness import Running, assert_error

BEAM = {"method": "beam", "num_beams": 3, "num_return_sequences": 2}
BODY = {"prompt": "def f(", "max_tokens": 8, "temperature": 0, "decode": BEAM}


def test_a_choice_has_all_texts_with_their_scores(shared: Running):
    answer = shared.post("/v1/completions", **BODY)
    assert answer.status_code == 200, answer.text
    (choice,) = answer.json()["choices"]
    texts, scores = choice["beams"]["texts"], [text["score"] for text in choice["beams"]["texts"]]
    assert choice["text"] == texts[0]["text"] and len(texts) == 2 and scores == sorted(scores, reverse=True)
    assert choice["beams"]["calls"] > 8


def test_in_a_chat(shared: Running):
    body = {key: value for key, value in BODY.items() if key != "prompt"}
    answer = shared.post("/v1/chat/completions", **body, messages=[{"role": "user", "content": "fibonacci"}])
    (choice,) = answer.json()["choices"]
    assert len(choice["beams"]["texts"]) == 2 and choice["message"]["content"] == choice["beams"]["texts"][0]["text"]


@pytest.mark.parametrize(
    "changes, param, words",
    [
        ({"stream": True}, "stream", "leave out stream"),
        ({"n": 2}, "n", "use decode.num_return_sequences instead"),
        ({"best_of": 2}, "best_of", "use decode.num_return_sequences instead"),
        ({"temperature": 0.5}, "temperature", "set temperature=0"),
        ({"logprobs": 1}, "logprobs", "leave out logprobs"),
        ({"decode": {**BEAM, "num_beams": 99}}, "decode", "decode.num_beams=99 is out of range"),
        ({"decode": {**BEAM, "best_first": True}}, "decode", "decode.length_penalty=0"),
    ],
)
def test_what_cannot_be_beside_it(shared: Running, changes: dict, param: str, words: str):
    assert_error(shared.post("/v1/completions", **{**BODY, **changes}), 400, words, param=param)
    shared.assert_serves()
