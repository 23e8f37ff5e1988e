"""decode=medusa over HTTP: exact texts by default, lossy ones named lossy wherever they show, and clear refusals."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch

from lp.model.checkpoint import ModelSettings, load
from lp.model.heads.files import save_heads
from lp.model.heads.medusa import HeadsInfo, MedusaHeads
from tests.launch.server.harness import AUTOREGRESSIVE, Running, assert_error, serving

TYPICAL = {"method": "medusa", "verify": "typical", "exact": False, "candidates": 40, "epsilon": 0.001, "max_rows": 60}
BODY: dict[str, Any] = {"prompt": "def f(", "max_tokens": 24, "temperature": 1.0, "seed": 3, "ignore_eos": True}
MESSAGES = [{"role": "user", "content": "fibonacci"}]


@pytest.fixture(scope="module")
def running(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A server with heads that know nothing."""
    heads, plain = tmp_path_factory.mktemp("heads"), load(ModelSettings(str(folder), device="cpu"))
    torch.manual_seed(0)
    config = plain.config.get_text_config(decoder=True)
    save_heads(MedusaHeads(HeadsInfo(config.hidden_size, config.vocab_size, 2, 1, False)), heads)
    with serving(load(ModelSettings(str(folder), device="cpu", heads=str(heads)))) as server:
        yield server


def test_the_text_is_that_of_plain_decoding_and_nothing_is_lossy(running: Running) -> None:
    plain = running.post("/v1/completions", **BODY, **AUTOREGRESSIVE).json()
    found = running.post("/v1/completions", **BODY, decode={"method": "medusa"}).json()
    assert found["choices"][0]["text"] == plain["choices"][0]["text"]
    assert "lossy" not in json.dumps([found["choices"], found["usage"]]) and "lossy" not in {
        *found,
        *found["lookahead"],
    }
    assert found["lookahead"]["decode"]["verify"] == "exact"


def test_typical_acceptance_is_named_lossy_in_every_reply(running: Running) -> None:
    plain = running.post("/v1/completions", **BODY, **AUTOREGRESSIVE).json()
    found = running.post("/v1/completions", **BODY, decode=TYPICAL).json()
    assert found["lossy"] == found["lookahead"]["lossy"] == "typical"
    assert found["choices"][0]["text"] != plain["choices"][0]["text"], "it changes the text, or the test proves little"
    chat = running.post("/v1/chat/completions", messages=MESSAGES, max_tokens=4, decode=TYPICAL).json()
    assert chat["lossy"] == "typical"
    with httpx.stream("POST", f"{running.url}/v1/completions", json={**BODY, "decode": TYPICAL, "stream": True}) as got:
        chunks = [json.loads(line[6:]) for line in got.iter_lines() if line.startswith("data: {")]
    assert chunks and all(chunk["lossy"] == "typical" for chunk in chunks)
    answer = running.post("/v1/responses", input="def f(", max_output_tokens=16, decode=TYPICAL).json()
    assert answer["usage"]["lossy"] == "typical"
    message = running.post("/v1/messages", model=running.model, messages=MESSAGES, max_tokens=4, decode=TYPICAL).json()
    assert message["usage"]["lossy"] == "typical"


def test_metrics_count_the_tokens_of_lossy_texts_apart(running: Running) -> None:
    before = running.metric("lookahead:lossy_tokens_total", verify="typical")
    running.post("/v1/completions", **BODY, decode={"method": "medusa"})
    assert running.metric("lookahead:lossy_tokens_total", verify="typical") == before
    running.post("/v1/completions", **BODY, decode=TYPICAL)
    assert running.metric("lookahead:lossy_tokens_total", verify="typical") == before + BODY["max_tokens"]
    families = httpx.get(running.url + "/metrics").text
    assert "# HELP lookahead:lossy_tokens_total Tokens of lossy texts" in families


@pytest.mark.parametrize(
    ("decode", "words"),
    [
        ({"method": "medusa", "verify": "typical"}, "decode.verify=typical is lossy"),
        ({"method": "medusa", "verify": "typical", "exact": True}, "decode.exact=true demands the model's own"),
        ({"method": "medusa", "verify": "sometimes"}, "decode.verify=sometimes must be exact, or typical"),
        ({"method": "medusa", "epsilon": 2}, "decode.epsilon=2 must be above 0 and at most 1"),
        ({"method": "medusa", "max_rows": 5000}, "decode.max_rows=5000 is out of range"),
        ({"method": "medusa", "heads": "x"}, "decode.heads is not a setting of medusa"),
    ],
)
def test_bad_settings_are_refused_by_name(running: Running, decode: dict[str, Any], words: str) -> None:
    assert_error(running.post("/v1/completions", **BODY, decode=decode), 400, words, param="decode")
    running.assert_serves()


def test_without_heads_a_request_for_them_is_refused(shared: Running) -> None:
    answer = shared.post("/v1/completions", **BODY, decode={"method": "medusa"})
    assert_error(answer, 400, "decode=medusa needs heads, and none are loaded", param="decode")
    shared.assert_serves()
