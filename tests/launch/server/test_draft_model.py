"""A second model in a server: requests that draft with it, and those that ask for one where there is none."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lp.model.checkpoint import ModelSettings, load
from lp.model.second_model import SecondModel, SecondModelExtension
from tests.launch.server.harness import Running, assert_error, serving

BODY = {"prompt": "def f(", "max_tokens": 16, "temperature": 0}
DRAFT = {"method": "draft_model", "rows": 8}


@pytest.fixture(scope="module")
def drafting(folder: Path) -> Iterator[Running]:
    """A server whose model drafts for itself."""
    second = [SecondModelExtension("draft", SecondModel(str(folder)))]
    with serving(load(ModelSettings(str(folder), device="cpu"), extensions=second)) as running:
        yield running


def test_the_text_is_that_of_plain_decoding_in_fewer_steps(drafting: Running) -> None:
    plain = drafting.post("/v1/completions", **BODY, decode={"method": "autoregressive"}).json()
    answer = drafting.post("/v1/completions", **BODY, decode=DRAFT)
    assert answer.status_code == 200, answer.text
    assert answer.json()["choices"][0]["text"] == plain["choices"][0]["text"]
    assert drafting.metric("lookahead:accepted_tokens_total", source="draft_model") > 4


def test_it_drafts_beside_the_other_sources_unless_a_request_leaves_it_out(drafting: Running) -> None:
    texts, counts = set[str](), list[float]()
    for settings in ({"model_drafts": False}, {}):
        answer = drafting.post("/v1/completions", **BODY, decode={"method": "auto", "rows": 8} | settings)
        assert answer.status_code == 200, answer.text
        texts.add(answer.json()["choices"][0]["text"])
        counts.append(drafting.metric("lookahead:accepted_tokens_total", source="draft_model"))
    assert len(texts) == 1 and counts[1] > counts[0]


def test_rejection_sampling_is_a_setting_of_a_request(drafting: Running) -> None:
    decode = {"method": "draft_model", "depth": 3, "verify": "rejection"}
    answer = drafting.post("/v1/completions", **BODY | {"temperature": 1.0, "seed": 3}, decode=decode)
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize(
    "decode, words",
    [
        ({"method": "draft_model", "verify": "loosely"}, "decode.verify=loosely must be exact or rejection"),
        ({"method": "draft_model", "depth": 65}, "decode.depth=65 is out of range"),
        ({"method": "draft_model", "path": "elsewhere"}, "decode.path is not a setting of draft_model"),
    ],
)
def test_what_cannot_be_is_refused(drafting: Running, decode: dict, words: str) -> None:
    assert_error(drafting.post("/v1/completions", **BODY, decode=decode), 400, words, param="decode")
    drafting.assert_serves()


def test_a_grammar_is_not_for_rejection_sampling(drafting: Running) -> None:
    decode = {"method": "draft_model", "verify": "rejection"}
    answer = drafting.post("/v1/completions", **BODY, decode=decode, guided_regex="[a-z]+")
    assert_error(answer, 400, "a grammar is not for decode.verify=rejection")


def test_a_server_without_a_second_model_refuses_by_name(shared: Running) -> None:
    answer = shared.post("/v1/completions", **BODY, decode={"method": "draft_model"})
    assert_error(answer, 400, "none is loaded: start with draft.path=FOLDER", param="decode")
    shared.assert_serves()
