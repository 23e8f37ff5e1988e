"""Streams with a second model or heads outlive a killed rank; SIGTERM while a rank comes back ends all."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from benchmarks.faults.observed_stream import observe_stream
from benchmarks.faults.rank_server import STOP_S, RankServer, serving, started

pytestmark = pytest.mark.slow

DEMO = Path(__file__).resolve().parents[3] / "demo" / "python-11m"
PROMPT = "def add(first, second):\n"
TOKENS = 160
BODY: dict[str, Any] = {"prompt": PROMPT, "max_tokens": TOKENS, "temperature": 0, "ignore_eos": True}
# Slows steps down, so that a rank is killed in mid-request.
SLOW = "parallel.delay_us=10000"


@pytest.fixture(scope="module")
def server() -> Iterator[RankServer]:
    settings = ("model.dtype=float32", f"model.heads={DEMO / 'heads'}", "draft.layers=2", "step_times=off", SLOW)
    with serving(DEMO, 2, "parallel.exchange=shm", *settings) as running:
        yield running


@pytest.fixture(scope="module")
def expected() -> str:
    """The text of transformers' greedy `generate` in float32."""
    tokenizer = AutoTokenizer.from_pretrained(DEMO)
    model = AutoModelForCausalLM.from_pretrained(DEMO, dtype=torch.float32)
    tokens = tokenizer(PROMPT, return_tensors="pt").input_ids
    made = model.generate(tokens, max_new_tokens=TOKENS, min_new_tokens=TOKENS, do_sample=False, eos_token_id=None)
    return tokenizer.decode(made[0, tokens.shape[1] :])


@pytest.mark.parametrize("victim", [0, 1])
@pytest.mark.parametrize("method", ["draft_model", "medusa"])
def test_a_stream_with_drafts_of_a_model_outlives_a_rank(
    server: RankServer, expected: str, method: str, victim: int
) -> None:
    server.wait_for_all()
    pid, epoch = server.status().pids[victim], server.status().epoch or 0

    def kill(number: int) -> None:
        if number == 3:
            os.kill(pid, signal.SIGKILL)

    seen = observe_stream(server.url, {**BODY, "decode": {"method": method}}, kill)
    assert seen.is_complete and seen.num_tokens == TOKENS, seen.error
    assert seen.text == expected
    server.wait_for_all(gone=[pid])
    assert (server.status().epoch or 0) >= epoch + 2


def test_sigterm_ends_all_while_a_killed_rank_is_started_anew(model: Path) -> None:
    with started(model, 2, "step_times=off") as server:
        (pid,) = server.signal([1])
        status = server.wait_until(lambda now: now.ranks[1].state in ("starting", "loading"), "rank 1 starts")
        assert status.ranks[1].pid != pid
        processes = server.family()
        server.process.terminate()
        assert server.process.wait(STOP_S) == 0, server.log
        _, left = psutil.wait_procs(processes, timeout=STOP_S)
        assert not left and "Traceback" not in server.log
