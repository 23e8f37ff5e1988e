"""POST /v1/embeddings: the model's hidden states, as clients of OpenAI's API want them."""

from __future__ import annotations

import base64
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModel

from lp.engine.input import RequestBuilder
from tests.launch.server.harness import Running, assert_error, serving

TEXTS = ["def fibonacci(n):", "class Window: pass", "x"]


@pytest.fixture(scope="module")
def reference(folder: Path):
    model = AutoModel.from_pretrained(folder, dtype=torch.float32).eval()

    def embedding(tokens: list[int], pooling: str = "last", normalizes: bool = True) -> np.ndarray:
        with torch.inference_mode():
            hidden = model(torch.tensor([tokens])).last_hidden_state[0].double()
        pooled = hidden[-1] if pooling == "last" else hidden.mean(dim=0)
        return (pooled / (pooled.norm() if normalizes else 1)).numpy()

    return embedding


def encode(running: Running, text: str) -> list[int]:
    return running.server.context.checkpoint.tokenizer.encode(text)


def embed(running: Running, **body) -> list[np.ndarray]:
    answer = running.post("/v1/embeddings", **body)
    assert answer.status_code == 200, answer.text
    assert [one["index"] for one in answer.json()["data"]] == list(range(len(answer.json()["data"])))
    return [np.array(one["embedding"]) for one in answer.json()["data"]]


def close(found: np.ndarray, expected: np.ndarray) -> bool:
    return np.allclose(found, expected, rtol=0, atol=1e-4)


def test_texts_through_the_openai_client(shared: Running, reference):
    """It asks for base64 by itself."""
    answer = shared.openai().embeddings.create(model=shared.model, input=TEXTS)
    tokens = [encode(shared, text) for text in TEXTS]
    assert answer.object == "list" and answer.model == shared.model
    assert answer.usage.prompt_tokens == answer.usage.total_tokens == sum(map(len, tokens))
    for one, expected in zip(answer.data, tokens, strict=True):
        assert one.object == "embedding" and close(np.array(one.embedding), reference(expected))


@pytest.mark.parametrize("pooling", ["last", "mean"])
@pytest.mark.parametrize("normalizes", [True, False])
def test_poolings(shared: Running, reference, pooling: str, normalizes: bool):
    (found,) = embed(shared, input=TEXTS[0], pooling=pooling.upper(), normalize=normalizes)
    assert close(found, reference(encode(shared, TEXTS[0]), pooling, normalizes))


def test_formats_and_token_ids(shared: Running, reference):
    tokens = encode(shared, TEXTS[1])
    numbers = shared.post("/v1/embeddings", input=tokens, encoding_format="float").json()["data"][0]["embedding"]
    packed = shared.post("/v1/embeddings", input=[tokens], encoding_format="base64").json()["data"][0]["embedding"]
    assert close(np.array(numbers), reference(tokens))
    assert np.frombuffer(base64.b64decode(packed), "<f4").tolist() == numbers


def test_long_inputs_are_cut_on_request(shared: Running, reference):
    tokens = encode(shared, " ".join(TEXTS * 3))
    (found,) = embed(shared, input=tokens, truncate_prompt_tokens=5)
    assert close(found, reference(tokens[-5:]))
    (found,) = embed(shared, input=[7] * 3000, truncate_prompt_tokens=-1)
    assert close(found, reference([7] * 1023))


def test_settings_choose_what_requests_do_not(checkpoint, reference):
    with serving(checkpoint, pooling="mean", normalize_embeddings=False, max_choices=2) as running:
        (found,) = embed(running, input=TEXTS[0])
        assert close(found, reference(encode(running, TEXTS[0]), "mean", False))
        (found,) = embed(running, input=TEXTS[0], pooling="last", normalize=True)
        assert close(found, reference(encode(running, TEXTS[0])))
        assert_error(running.post("/v1/embeddings", input=TEXTS), 400, "3 texts", "server.max_choices", param="input")
        assert running.metric("vllm:generation_tokens_total") == 0
        assert running.metric("vllm:request_success_total", finished_reason="stop") == 2


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({}, ["input"]),
        ({"input": ""}, ["empty"]),
        ({"input": []}, ["empty"]),
        ({"input": ["a", ""]}, ["empty"]),
        ({"input": 7}, ["input must be a string or a list of token ids"]),
        ({"input": [99999]}, ["99999"]),
        ({"input": [7] * 1024}, ["1024 tokens", "1023", "truncate_prompt_tokens=-1"]),
        ({"input": "a", "dimensions": 8}, ["dimensions=8"]),
        ({"input": "a", "encoding_format": "int8"}, ["encoding_format", "base64"]),
        ({"input": "a", "pooling": "cls"}, ["pooling", "mean"]),
        ({"input": "a", "truncate_prompt_tokens": 0}, ["truncate_prompt_tokens=0"]),
    ],
)
def test_bad_input_is_refused(shared: Running, body: dict, words: list[str]):
    assert_error(shared.post("/v1/embeddings", **body), 400, *words)
    shared.assert_serves()


def test_unknown_models_and_keys(checkpoint):
    with serving(checkpoint, api_keys=["secret"]) as running:
        assert_error(running.post("/v1/embeddings", input="a"), 401)
        client = running.openai(api_key="secret")
        assert len(client.embeddings.create(model=running.model, input="a").data) == 1


def test_what_only_the_engine_knows_to_be_impossible_is_no_matter_of_length(checkpoint):
    with serving(checkpoint) as running:
        running.engine.request_builder = RequestBuilder(checkpoint)  # the front end has another one
        running.engine.request_builder.embeds = False
        answer = running.post("/v1/embeddings", input="a")
        assert_error(answer, 400, "gives no hidden states")
        assert answer.json()["error"]["code"] is None
        running.assert_serves()
