"""Out of room for keys and values over HTTP: requests wait; what can never fit is refused with a message."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from lp.model.checkpoint import Checkpoint
from lp.scheduling.kv_budget import KVBudget
from tests.launch.server.harness import AUTOREGRESSIVE, assert_error, serving

PROMPT = list(range(20, 220))


def test_requests_wait_until_there_is_room(checkpoint: Checkpoint) -> None:
    with serving(checkpoint) as running:
        alone = running.post("/v1/completions", prompt=PROMPT, max_tokens=150, temperature=0, **AUTOREGRESSIVE).json()
        running.engine.scheduler.budget = KVBudget(2)  # three of these need six pages in the end
        with ThreadPoolExecutor(3) as pool:
            body = {"prompt": PROMPT, "max_tokens": 150, "temperature": 0, **AUTOREGRESSIVE}
            answers = [pool.submit(running.post, "/v1/completions", **body) for _ in range(3)]
            texts = [answer.result().json()["choices"][0]["text"] for answer in answers]
        assert texts == [alone["choices"][0]["text"]] * 3
        running.assert_serves()


@pytest.mark.parametrize("is_told_in_time", [True, False])
@pytest.mark.parametrize("stream", [True, False])
def test_what_can_never_fit_is_refused(is_told_in_time: bool, stream: bool, checkpoint: Checkpoint) -> None:
    """The front end may not know yet how much room the ranks have: then they refuse the request."""
    with serving(checkpoint) as running:
        running.engine.scheduler.budget = KVBudget(2)
        if is_told_in_time:
            running.engine.request_builder.budget = KVBudget(2)
        answer = running.post("/v1/completions", prompt=PROMPT, max_tokens=400, stream=stream, **AUTOREGRESSIVE)
        words = "200 tokens", "=400", "model.kv_memory holds 512 tokens", "at most 312 new tokens"
        if stream and not is_told_in_time:
            assert answer.status_code == 200 and all(word in answer.text for word in words)
            assert "context_length_exceeded" in answer.text
        else:
            assert_error(answer, 400, *words, code="context_length_exceeded")
        if is_told_in_time:  # without a limit of its own, a request takes what there is
            chat = {"messages": [{"role": "user", "content": "a"}], "temperature": 0, **AUTOREGRESSIVE}
            assert running.post("/v1/chat/completions", **chat).status_code == 200
        running.assert_serves()


def test_the_bound_is_that_of_the_model(checkpoint: Checkpoint) -> None:
    with serving(replace(checkpoint)) as running:
        assert running.engine.request_builder.budget.num_pages == checkpoint.model.memory.num_pages
