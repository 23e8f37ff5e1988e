"""A rank is killed while a request decodes with a second model, with heads, by beams, or by samples that are ranked.

What these methods keep of a sequence beside its tokens is on every rank or made anew, so texts are those of a group
that loses nobody; where the method is greedy decoding, they are those of transformers' `generate`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from transformers import AutoTokenizer

from benchmarks.faults.rank_server import RankServer, serving
from lp.model.checkpoint import ModelSettings, load
from lp.model.heads.files import save_heads
from lp.model.heads.medusa import HeadsInfo, MedusaHeads
from tests.launch.server.harness import eventually
from tests.models import generate_greedily, load_reference
from tests.slow import exhaustive_except

# So many tokens, and steps that are so slow, that a rank is killed long before the text ends.
BODY: dict[str, Any] = {"prompt": "def fibonacci(n):", "max_tokens": 100, "ignore_eos": True, "temperature": 0}
SLOW = "parallel.delay_us=40000"
# On a busy machine a text may end before the test gets a turn; then it begins again.
MOST_TRIES = 5
METHODS: dict[str, dict[str, Any]] = {
    "draft_model": {"decode": {"method": "draft_model", "rows": 2}},  # all ranks draft
    "ahead": {"decode": {"method": "draft_model"}},  # one rank verifies, the other one drafts
    "medusa": {"decode": {"method": "medusa", "max_rows": 8}},
    "contrastive": {"decode": {"method": "contrastive"}},
    "beam": {"decode": {"method": "beam", "num_beams": 3}},
    "best_of": {"decode": {"method": "best_of", "num_samples": 3}, "temperature": 0.9, "seed": 5},
}

GREEDY = ("draft_model", "ahead", "medusa")


@pytest.fixture(scope="module")
def two(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RankServer]:
    """Two ranks whose model drafts for itself, is its own amateur, and has heads that know nothing."""
    heads, plain = tmp_path_factory.mktemp("heads"), load(ModelSettings(str(model), device="cpu"))
    config = plain.config.get_text_config(decoder=True)
    torch.manual_seed(0)
    save_heads(MedusaHeads(HeadsInfo(config.hidden_size, config.vocab_size, 2, 1, False)), heads)
    beside = [f"draft.path={model}", f"second.path={model}", f"model.heads={heads}"]
    patient = "supervisor.answer_timeout_s=60"
    with serving(model, 2, "parallel=lp", SLOW, "step_times=off", patient, *beside) as server:
        yield server


def text_of(server: RankServer, body: dict[str, Any]) -> str:
    answer = httpx.post(f"{server.url}/v1/completions", json=BODY | body, timeout=120)
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]["text"]


def num_running(server: RankServer) -> float:
    lines = httpx.get(f"{server.url}/metrics").text.splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith("vllm:num_requests_running"))


def begin(server: RankServer, body: dict[str, Any], thread: ThreadPoolExecutor) -> Future[str]:
    """A request that has run for a while and goes on. Searches tell nothing until they end, so a clock has to do."""
    for _ in range(MOST_TRIES):
        found = thread.submit(text_of, server, body)
        eventually(lambda: num_running(server) > 0 or found.done())  # noqa: B023 - called in this round alone
        time.sleep(0.3)
        if not found.done():
            return found
    raise AssertionError(f"{MOST_TRIES} texts ended before anything could be done to them")


@pytest.fixture(scope="module")
def greedy(model: Path) -> str:
    """What transformers' greedy `generate` adds to the prompt."""
    tokenizer = AutoTokenizer.from_pretrained(model)
    tokens = generate_greedily(load_reference(model), tokenizer(BODY["prompt"])["input_ids"], BODY["max_tokens"])
    return tokenizer.decode(tokens)


@pytest.mark.parametrize(
    ("method", "victim"),
    exhaustive_except(
        [("draft_model", 0), ("ahead", 0), ("ahead", 1), ("medusa", 1), ("contrastive", 0), ("beam", 0),
         ("best_of", 1)],
        ("draft_model", 0), ("medusa", 1), ("beam", 0),
    ),
)  # fmt: skip
def test_the_text_is_that_of_a_group_that_loses_nobody(two: RankServer, greedy: str, method: str, victim: int) -> None:
    two.wait_for_all()
    undisturbed = greedy if method in GREEDY else text_of(two, METHODS[method])
    before = two.status().epoch or 0
    with ThreadPoolExecutor(1) as thread:
        found = begin(two, METHODS[method], thread)
        (lost,) = two.signal([victim])
        assert found.result() == undisturbed
    two.wait_for_all(gone=[lost])
    assert (two.status().epoch or 0) >= before + 2  # one without the rank, one with it again
