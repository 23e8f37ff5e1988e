"""The arena's bound on the emulated GPU: what fits, who is evicted, and that no text changes."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel

from lp import Autoregressive, Engine, Lookahead, Sampling, Stopping
from lp.kv_cache.arena import Arena, PagedCache
from lp.kv_cache.cache import PAGE, pages_of
from lp.model.memory import DoesNotFit
from tests.lp.test_kv_memory import OneByOne
from tests.models import generate_greedily
from tests.slow import slow_except

Folders = dict[str, Path]
GREEDY = Sampling(temperature=0.0, seed=0)
PROMPTS = [[(3 + n + 7 * i) % 41 + 2 for i in range(240)] for n in range(3)]
METHODS = [Autoregressive(), Lookahead(3, 4, 3), Lookahead(5, 3, 5)]
NUM_TOKENS = 24
PAGE_BYTES = 3 * 2 * (8 + 8) * 4 * PAGE  # of the tiny Llama in float32


@pytest.fixture(scope="module")
def expected(reference_of: Callable[[str], PreTrainedModel]) -> list[list[int]]:
    return [generate_greedily(reference_of("llama"), prompt, NUM_TOKENS) for prompt in PROMPTS]


@pytest.mark.parametrize("one_by_one", slow_except([False, True], True))
def test_an_arena_that_is_too_small_for_all_changes_no_text(
    one_by_one: bool,
    folders: Folders,
    expected: list[list[int]],
    cuda: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The attention is that of transformers in float32, over copies of scattered pages."""
    evicted: list[int] = []
    monkeypatch.setattr(PagedCache, "evict", lambda cache, evict=PagedCache.evict: evicted.append(1) or evict(cache))
    kv_memory = str(5.5 * PAGE_BYTES / 1e9)  # five pages, one of them for padding
    engine = Engine.from_pretrained(str(folders["llama"]), device="cuda", step_times="off", kv_memory=kv_memory)
    memory = engine.checkpoint.model.memory
    assert isinstance(memory, Arena) and memory.num_pages == engine.scheduler.budget.num_pages == 4
    if one_by_one:  # with a scheduler that knows nothing of room
        engine.scheduler = OneByOne(engine.runner)
    tokens: dict[str, list[int]] = {}
    for number, (prompt, decode) in enumerate(zip(PROMPTS, METHODS, strict=True)):
        stopping = Stopping(NUM_TOKENS, ignore_eos=True)
        engine.add_request(engine.request_builder.build(prompt, decode, GREEDY, stopping, request_id=str(number)))
        tokens[str(number)] = []
    while not engine.is_idle:
        for output in engine.step():
            tokens[output.request_id] += output.tokens
    assert list(tokens.values()) == expected
    assert memory.allocator.num_free == 4
    assert bool(evicted) == one_by_one


def test_an_arena_that_does_not_fit_is_refused_before_anything_is_loaded(
    folders: Folders, cuda: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(*_: object, **__: object) -> None:
        raise AssertionError("the weights are read")

    monkeypatch.setattr("lp.model.checkpoint.read_whole", read)
    message = (
        r"does not fit cuda: weights 0\.0 GB, model\.kv_memory 4\.0 GB, .* 0\.2 GB, .*; use a lower model\.kv_memory"
    )
    with pytest.raises(DoesNotFit, match=message):
        Engine.from_pretrained(str(folders["llama"]), device="cuda", kv_memory="4")


def test_auto_is_what_the_weights_leave(folders: Folders, cuda: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device=None: (650_000_000, 10_000_000_000))
    engine = Engine.from_pretrained(str(folders["llama"]), device="cuda", step_times="off")
    assert engine.scheduler.budget.num_pages == (650_000_000 - 600_000_000) // PAGE_BYTES - 1
    monkeypatch.setattr("lp.model.checkpoint.check_fits", lambda *_: None)  # the graphs of another program, meanwhile
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device=None: (600_100_000, 10_000_000_000))
    with pytest.raises(
        DoesNotFit, match=r"model\.kv_memory=auto \(what is free on cuda:0, but for 6% of it\) is 0\.0001 GB"
    ):
        Engine.from_pretrained(str(folders["gpt2"]), device="cuda", step_times="off")


def test_a_small_model_leaves_memory_that_it_cannot_use(
    folders: Folders, cuda: None, caplog: pytest.LogCaptureFixture
) -> None:
    """The arena of "auto" is no larger than 256 sequences of the whole context can fill."""
    with caplog.at_level(logging.INFO, "lookahead"):
        engine = Engine.from_pretrained(str(folders["llama"]), device="cuda", step_times="off")
    memory = engine.checkpoint.model.memory
    assert isinstance(memory, Arena) and memory.num_pages == 256 * pages_of(engine.checkpoint.max_length + 1)
    assert "as much as 256 sequences of the whole context can fill" in caplog.text
