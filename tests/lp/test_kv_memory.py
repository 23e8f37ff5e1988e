"""The bound of memory for keys and values, through the engine: who waits, what is evicted, and what is refused."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

from lp import Auto, Autoregressive, Engine, Lookahead, Sampling, Stopping
from lp.kv_cache.cache import PAGE
from lp.kv_cache.contiguous import ContiguousCache, ContiguousMemory
from lp.model import memory
from lp.runner.sequence_state import SequenceState
from lp.scheduling.batch import Turn
from lp.scheduling.kv_budget import KVBudget
from lp.scheduling.request_state import RequestState
from lp.scheduling.scheduler import Scheduler
from tests.slow import slow_except

GREEDY = Sampling(temperature=0.0, seed=0)
PAGE_BYTES = 3 * 2 * (8 + 8) * 4 * PAGE  # of the tiny Llama
PROMPTS = [[(3 + n + 7 * i) % 41 + 2 for i in range(200)] for n in range(4)]
METHODS = [Autoregressive(), Lookahead(3, 4, 3), Auto(rows=12), Autoregressive()]


def load(folder: Path, num_pages: int) -> Engine:
    gigabytes = str((num_pages + 0.5) * PAGE_BYTES / 1e9)
    return Engine.from_pretrained(str(folder), device="cpu", step_times="off", kv_memory=gigabytes)


class OneByOne(Scheduler):
    """Gives one turn in each step, and knows nothing of memory."""

    def admitted(self) -> list[RequestState]:
        return list(self)

    def preempted(self, admitted: Iterable[RequestState]) -> list[RequestState]:
        return []

    def next_turns(self, ready: Sequence[RequestState]) -> list[Turn]:
        waiting = sorted(set(ready) - self._in_flight, key=lambda state: (state.stats.steps, state.request_id))
        return [Turn(one, len(one.sequence.tokens) - 1, decodes=True) for one in waiting[:1]]


@pytest.fixture
def dropped(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The lengths of all caches whose sequences have lost their room."""
    lengths: list[int] = []
    real = SequenceState.drop

    def drop(state: SequenceState) -> None:
        lengths.append(state.cache.length)
        real(state)

    monkeypatch.setattr(SequenceState, "drop", drop)
    return lengths


@pytest.fixture
def evicted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The lengths of all caches that are evicted."""
    lengths: list[int] = []
    real = ContiguousCache.evict

    def evict(cache: ContiguousCache) -> None:
        lengths.append(cache.length)
        real(cache)

    monkeypatch.setattr(ContiguousCache, "evict", evict)
    return lengths


def run(engine: Engine, most_at_once: list[int] | None = None) -> dict[str, list[int]]:
    """The tokens of four requests that are served side by side."""
    for number, (prompt, decode) in enumerate(zip(PROMPTS, METHODS, strict=True)):
        stopping = Stopping(120, ignore_eos=True)
        engine.add_request(engine.request_builder.build(prompt, decode, GREEDY, stopping, request_id=str(number)))
    tokens: dict[str, list[int]] = {str(number): [] for number in range(len(PROMPTS))}
    while not engine.is_idle:
        for output in engine.step():
            tokens[output.request_id] += output.tokens
        if most_at_once is not None:
            most_at_once.append(engine.checkpoint.model.memory.num_used)
    return tokens


def test_the_number_of_tokens_is_said_at_start(checkpoint_folder: Callable[[str], Path], caplog: Any) -> None:
    with caplog.at_level(logging.INFO, "lookahead"):
        engine = load(checkpoint_folder("llama"), 9)
    assert engine.checkpoint.model.memory.num_pages == engine.scheduler.budget.num_pages == 9
    assert "for 2,304 tokens: 3 sequence(s) of the whole context of 640 tokens" in caplog.text
    caplog.clear()
    with caplog.at_level(logging.INFO, "lookahead"):
        Engine.from_pretrained(str(checkpoint_folder("llama")), device="cpu", step_times="off")
    assert "GB with model.kv_memory=auto (50% of the memory that is available), for " in caplog.text


def test_requests_wait_for_room_and_their_text_does_not_change(
    checkpoint_folder: Callable[[str], Path], llama: Engine, dropped: list[int]
) -> None:
    """All begin with a page each. As they grow, the last ones have to wait, and lose what they have computed."""
    engine, used = load(checkpoint_folder("llama"), 5), list[int]()
    assert run(engine, used) == run(Engine(llama.checkpoint))
    assert any(length > 200 for length in dropped), "else nothing was lost and computed again"
    assert max(used) <= 5 and engine.checkpoint.model.memory.num_used == 0


@pytest.mark.parametrize("num_pages", slow_except([2, 3], 3))
def test_sequences_that_are_evicted_in_every_turn_continue_as_if_nothing_had_happened(
    num_pages: int, llama: Engine, evicted: list[int], checkpoint_folder: Callable[[str], Path]
) -> None:
    """Memory looks after itself, whatever a scheduler does."""
    engine = load(checkpoint_folder("llama"), 4)
    engine.checkpoint.model.memory = ContiguousMemory(3, num_pages)
    engine.scheduler = OneByOne(engine.runner)
    assert run(engine) == run(Engine(llama.checkpoint))
    assert len(evicted) > 20


def test_a_request_that_ends_or_is_cancelled_frees_its_room(llama: Engine) -> None:
    engine = Engine(llama.checkpoint, budget=KVBudget(2))
    for name in ("first", "second"):
        stopping = Stopping(200, ignore_eos=True)
        engine.add_request(
            engine.request_builder.build(PROMPTS[0], Autoregressive(), GREEDY, stopping, request_id=name)
        )
    names = [{output.request_id for output in engine.step()} for _ in range(70)]
    assert all(some == {"first", "second"} for some in names[1:50]), "the first step feeds them"
    assert all(some == {"first"} for some in names[-10:]), "together they need four pages"
    assert engine.num_running == 2
    engine.abort("first")
    assert {output.request_id for _ in range(2) for output in engine.step()} == {"second"}
    engine.abort("second")
    assert engine.is_idle and not engine.scheduler._running


def test_a_request_that_can_never_fit_is_refused(llama: Engine) -> None:
    engine = Engine(llama.checkpoint, budget=KVBudget(2))
    message = (
        r"prompt of 200 tokens and max_new_tokens=400 .* holds 512 tokens, 1 of them .* at most 312 new tokens, or"
    )
    with pytest.raises(ValueError, match=message):
        engine.generate(PROMPTS[0], max_new_tokens=400, decode=Autoregressive())
    with pytest.raises(ValueError, match=r"shorten the prompt, or raise model\.kv_memory"):
        engine.generate(PROMPTS[0] * 3, max_new_tokens=None, decode=Autoregressive())
    fits = engine.request_builder.build(PROMPTS[0], Autoregressive(), GREEDY, Stopping(None))
    assert fits.stopping.max_new_tokens == 312
    engine.scheduler.budget = KVBudget(1)  # less than the builder knows, as with ranks that others have started
    refusal = engine.add_request(fits)
    assert refusal and refusal.finish_reason == "no_room" and "holds 256 tokens" in refusal.text
    assert engine.is_idle


def test_a_request_that_no_longer_fits_ends_when_ranks_change(llama: Engine) -> None:
    engine = Engine(llama.checkpoint, budget=KVBudget(2))
    request = engine.request_builder.build(PROMPTS[0], Autoregressive(), GREEDY, Stopping(200), request_id="a")
    engine.add_request(request)
    engine.step()
    (end,) = engine.resume(engine.runner, [(request, engine.generated()["a"])], None, KVBudget(1))
    assert end.finish_reason == "no_room" and engine.is_idle and engine.runner.cache_bytes == 0
    (going,) = engine.resume(engine.runner, [(request, [])], None, KVBudget(2))
    assert going.finish_reason is None and not engine.is_idle
    engine.abort("a")


@pytest.mark.parametrize("setting", ["much", "0", "-1", "nan", "inf"])
def test_nonsense_is_refused_before_anything_is_loaded(setting: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"model\.kv_memory='.*' must be auto, or a number of GB above 0"):
        Engine.from_pretrained(str(tmp_path), device="cpu", kv_memory=setting)


def test_room_for_less_than_one_sequence_is_refused(
    checkpoint_folder: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    message = (
        r"model\.kv_memory=.* is 0\.000344 GB, and .* one sequence of 640 tokens .* need 0\.000393 GB; use a higher"
    )
    with pytest.raises(ValueError, match=message):
        load(checkpoint_folder("llama"), 3)
    monkeypatch.setattr(memory, "LIKELY_TOKENS", 256)  # a context that is longer than most texts may be cut
    engine = load(checkpoint_folder("llama"), 2)
    with pytest.raises(ValueError, match=r"model\.kv_memory holds 512 tokens"):
        engine.generate(PROMPTS[0], max_new_tokens=400)
