"""decode=best_of and decode=contrastive over HTTP: what they yield, and clear refusals of what they cannot have."""

from __future__ import annotations

import json

import pytest

from tests.launch.server.harness import Running, assert_error
from tests.launch.server.test_streaming import events

BEST = {"method": "best_of", "num_samples": 3, "num_return_sequences": 2}
BODY = {"prompt": "def f(", "max_tokens": 8, "temperature": 0.8, "seed": 5, "decode": BEST}
CONTRASTIVE = {"method": "contrastive", "amateur_temperature": 3.0}


def test_the_best_text_is_that_of_best_of(shared: Running):
    """The completions' own best_of ranks the same samples in the same way."""
    answer = shared.post("/v1/completions", **BODY)
    assert answer.status_code == 200, answer.text
    (choice,) = answer.json()["choices"]
    texts = choice["beams"]["texts"]
    assert choice["text"] == texts[0]["text"] and len(texts) == 2 and texts[0]["score"] > texts[1]["score"]
    body = {**BODY, "decode": {"method": "auto"}, "best_of": 3, "n": 2}
    ranked = shared.post("/v1/completions", **body).json()
    assert [one["text"] for one in ranked["choices"]] == [text["text"] for text in texts]
    assert answer.json()["usage"]["completion_tokens"] == ranked["usage"]["completion_tokens"]


def test_in_a_chat(shared: Running):
    body = {key: value for key, value in BODY.items() if key != "prompt"}
    answer = shared.post("/v1/chat/completions", **body, messages=[{"role": "user", "content": "fibonacci"}])
    (choice,) = answer.json()["choices"]
    assert len(choice["beams"]["texts"]) == 2 and choice["message"]["content"] == choice["beams"]["texts"][0]["text"]


def test_contrastive_decoding_is_streamed_like_any_other(shared: Running):
    body = {**BODY, "decode": CONTRASTIVE, "n": 2}
    whole = [choice["text"] for choice in shared.post("/v1/completions", **body).json()["choices"]]
    texts = ["", ""]
    for event in events(shared, **body)[1][:-1]:
        for choice in json.loads(event)["choices"]:
            texts[choice["index"]] += choice["text"]
    assert texts == whole and texts[0] != texts[1]


@pytest.mark.parametrize(
    "changes, param, words",
    [
        ({"stream": True}, "stream", "decode=best_of has no text before its end; leave out stream"),
        ({"n": 2}, "n", "use decode.num_return_sequences instead"),
        ({"best_of": 2}, "best_of", "use decode.num_return_sequences instead"),
        ({"temperature": 0}, "temperature", "set a temperature above 0"),
        ({"prompt_logprobs": 1}, "prompt_logprobs", "leave it out"),
        ({"decode": {**BEST, "num_samples": 99}}, "decode", "decode.num_samples=99"),
        ({"decode": {**BEST, "inner": "beam"}}, "decode", "decode.inner=beam is not for decode=best_of"),
        ({"decode": {**BEST, "ranked_by": "second"}}, "decode", "needs a second model"),
        ({"decode": {"method": "contrastive"}}, "decode", "decode=contrastive needs an amateur"),
        ({"decode": {**CONTRASTIVE, "alpha": 2}}, "decode", "decode.alpha=2 is out of range"),
    ],
)
def test_what_cannot_be_beside_them(shared: Running, changes: dict, param: str, words: str):
    assert_error(shared.post("/v1/completions", **{**BODY, **changes}), 400, words, param=param)
    shared.assert_serves()
