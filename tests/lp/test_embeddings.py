"""Embeddings are transformers' hidden states of the prompt, whatever else is in the steps that compute them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import AutoModel

from lp import Engine
from lp.engine.engine import NO_HIDDEN
from lp.request import Pooling
from lp.runner.single_device import SingleDevice
from lp.scheduling import prompt_scores

LONG = [5 + (7 * place) % 250 for place in range(300)]


def expected(engine: Engine, tokens: list[int], pooling: str) -> np.ndarray:
    model = AutoModel.from_pretrained(engine.checkpoint.path, dtype=torch.float32).eval()
    with torch.inference_mode():
        hidden = model(torch.tensor([tokens])).last_hidden_state[0].double()
    return (hidden[-1] if pooling == "last" else hidden.mean(dim=0)).numpy()


@pytest.mark.parametrize("pooling", [*Pooling])
@pytest.mark.parametrize("length", [1, 2, 17, 300])
def test_embeddings_are_hidden_states(
    llama: Engine, pooling: str, length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prompt_scores, "MOST_HIDDEN", 1 << 12)
    engine = Engine(llama.checkpoint, SingleDevice(llama.checkpoint.model, prefill_chunk=64))
    found = engine.embed(LONG[:length], pooling)
    assert np.allclose(found, expected(llama, LONG[:length], pooling), rtol=0, atol=1e-4)
    assert engine.is_idle and engine.runner.cache_bytes == 0


@pytest.mark.parametrize("pooling", [*Pooling])
def test_embeddings_beside_texts(llama: Engine, pooling: Pooling) -> None:
    """They share steps with decoding requests, whose texts stay the same, and with each other."""
    engine = Engine(llama.checkpoint, SingleDevice(llama.checkpoint.model))
    alone = engine.generate([5, 9, 7] * 8, max_new_tokens=60, temperature=0.0).token_ids
    stream = engine.stream([5, 9, 7] * 8, max_new_tokens=60, temperature=0.0)
    tokens = [*next(stream).tokens]
    prompts = [LONG[:40], LONG[40:90], LONG[3:4]]
    requests = [engine.request_builder.build_embedding(prompt, pooling) for prompt in prompts]
    for request in requests:
        assert engine.add_request(request) is None
    found = {}
    while len(found) < len(requests):
        for output in engine.step():
            if output.embedding is not None:
                assert output.finish_reason == "stop" and not output.tokens and not output.text
                found[output.request_id] = output.embedding
            elif output.request_id in engine._outputs_of_streams:
                engine._outputs_of_streams[output.request_id].append(output)
    tokens += [token for output in stream for token in output.tokens]
    assert tokens == alone
    for request, prompt in zip(requests, prompts, strict=True):
        assert np.allclose(found[request.id], expected(llama, prompt, pooling), rtol=0, atol=1e-4)


def test_a_prompt_that_loses_its_memory_begins_anew(llama: Engine) -> None:
    engine = Engine(llama.checkpoint, SingleDevice(llama.checkpoint.model, prefill_chunk=64))
    request = engine.request_builder.build_embedding(LONG, Pooling.mean)
    engine.add_request(request)
    engine.step()
    (state,) = engine.scheduler
    engine.runner.drop(state.sequence)
    state.forget_computed()
    outputs = []
    while not engine.is_idle:
        outputs += engine.step()
    assert outputs[-1].embedding is not None
    assert np.allclose(outputs[-1].embedding, expected(llama, LONG, "mean"), rtol=0, atol=1e-4)


def test_a_forward_without_hidden_states_is_named(llama: Engine) -> None:
    engine = Engine(llama.checkpoint, SingleDevice(llama.checkpoint.model))
    request = engine.request_builder.build_embedding(LONG, Pooling.last)
    engine.request_builder.embeds = False
    try:
        with pytest.raises(ValueError, match="gives no hidden states"):
            engine.embed(LONG)
        refusal = engine.add_request(request)
        assert refusal is not None and (refusal.finish_reason, refusal.text) == ("unsupported", NO_HIDDEN)
    finally:
        engine.request_builder.embeds = True


def test_bad_prompts(llama: Engine) -> None:
    with pytest.raises(ValueError, match="the prompt is empty"):
        llama.embed("")
    with pytest.raises(ValueError, match="token id 99999"):
        llama.embed([99999])
    with pytest.raises(ValueError, match="median"):
        llama.embed("a", "median")
