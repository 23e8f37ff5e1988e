"""Finished sequences from which later requests begin: which are kept, for whom, and that texts stay the same."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lp import Auto, Autoregressive, Engine, Lookahead, Sampling, Stopping
from lp.kv_cache.cache import PAGE
from lp.request import Completion
from lp.request import Sequence as TokenSequence
from lp.scheduling.kv_budget import KVBudget
from lp.scheduling.prefix_cache import LEAST_TOKENS, PrefixCache
from lp.scheduling.settings import PrefixReuse, SchedulerSettings
from tests.mixture import check_mixture, make_mixture, run_mixture

GREEDY = Sampling(temperature=0.0, seed=0)
OWNER, ALL = SchedulerSettings(prefix_reuse=PrefixReuse.owner), SchedulerSettings(prefix_reuse=PrefixReuse.all)
TEXT = [(7 * at + 3) % 190 + 2 for at in range(120)]


def sequence_of(name: str, tokens: list[int]) -> TokenSequence:
    return TokenSequence(name, tokens, 1, GREEDY)


def ask(engine: Engine, prompt: list[int], owner: str | None = None, **settings: Any) -> Completion:
    """What a request yields alone on an engine."""
    stopping = Stopping(settings.pop("tokens", 12), ignore_eos=True)
    request = engine.request_builder.build(prompt, settings.pop("decode", None), GREEDY, stopping, owner=owner)
    assert engine.add_request(request) is None
    completion = Completion()
    while not engine.is_idle:
        for output in engine.step():
            completion.extend(output)
    return completion


def test_the_longest_beginning_is_found() -> None:
    prefixes = PrefixCache(OWNER)
    prefixes.add(sequence_of("a", [*TEXT[:40], 1, 1]), None)
    prefixes.add(sequence_of("b", [*TEXT[:60], 1]), None)
    prefixes.add(sequence_of("c", [*TEXT[:90], 1]), "somebody")
    found = prefixes.find(TEXT, None)
    assert found is not None and (found.sequence.id, found.length) == ("b", 60)
    assert (found := prefixes.find(TEXT[:30], None)) is not None and found.length == 29, "the last token is a root"
    assert (found := prefixes.find(TEXT, "somebody")) is not None and found.length == 90
    assert prefixes.find([1, *TEXT], None) is None and prefixes.find(TEXT[:LEAST_TOKENS], None) is None
    assert prefixes.find(TEXT, "nobody") is None


def test_the_least_recently_used_goes_first() -> None:
    prefixes = PrefixCache(SchedulerSettings(prefix_reuse=PrefixReuse.owner, max_prefixes=3))
    for name in "abcd":
        prefixes.add(sequence_of(name, [ord(name), *TEXT[:50]]), None)
    assert [one.id for one in prefixes.take_surplus(100)] == ["a"]
    prefixes.find([ord("b"), *TEXT], None)
    assert [one.id for one in prefixes.take_surplus(1)] == ["c", "d"] and len(prefixes) == 1
    assert prefixes.take("a") is None and [one.id for one in prefixes.take_all()] == ["b"] and not len(prefixes)


@pytest.mark.parametrize("decode", [Autoregressive(), Lookahead(3, 4, 3), Auto(max_rows=16)])
def test_a_request_that_begins_like_an_earlier_one_yields_the_same_text(decode: Any, llama: Engine) -> None:
    engine = Engine(llama.checkpoint, scheduler=OWNER)
    first = ask(engine, TEXT, decode=decode)
    conversation = [*TEXT, *first.token_ids, 5, 6, 7]
    for prompt, cached in ((conversation, 131), (TEXT[:80], 79), ([*TEXT[:64], 3, 4], 64), ([9, *TEXT], 0)):
        found = ask(engine, prompt, decode=decode)
        assert found.stats.cached_tokens == cached
        assert found.token_ids == ask(Engine(llama.checkpoint), prompt, decode=decode).token_ids


def test_keys_and_values_are_shared_by_one_owner_alone_unless_allowed(llama: Engine) -> None:
    for settings, cached in ((OWNER, 0), (ALL, 119), (SchedulerSettings(), 0)):
        engine = Engine(llama.checkpoint, scheduler=settings)
        ask(engine, TEXT, owner="one")
        assert ask(engine, TEXT, owner="other").stats.cached_tokens == cached
        again = 0 if settings.prefix_reuse is PrefixReuse.off else 119
        assert ask(engine, TEXT, owner="one").stats.cached_tokens == again


def test_running_requests_take_the_room_of_finished_ones(llama: Engine) -> None:
    engine = Engine(llama.checkpoint, budget=KVBudget(4), scheduler=OWNER)
    for number in range(6):
        ask(engine, [number + 2, *TEXT], decode=Autoregressive())
    kept = engine.scheduler.prefixes
    assert len(kept) == 4
    ask(engine, [50, *TEXT], decode=Autoregressive(), tokens=2 * PAGE)
    assert len(kept) == 2 and ask(engine, [50, *TEXT]).stats.cached_tokens == 120


def test_a_cancelled_prompt_keeps_nothing_that_was_not_computed(llama: Engine) -> None:
    engine = Engine(llama.checkpoint, scheduler=SchedulerSettings(8, PrefixReuse.owner))
    engine.add_request(engine.request_builder.build([3, 4], None, GREEDY, Stopping(60, ignore_eos=True), "long"))
    engine.step()
    engine.add_request(engine.request_builder.build(TEXT, None, GREEDY, Stopping(4), "late"))
    engine.step()
    assert engine.abort("late") and not len(engine.scheduler.prefixes)
    engine.abort("long")
    assert ask(engine, TEXT).stats.cached_tokens == 0


def test_a_name_that_is_used_again_and_resuming_leave_nothing_behind(llama: Engine) -> None:
    engine = Engine(llama.checkpoint, scheduler=OWNER)
    for _ in range(3):
        request = engine.request_builder.build(TEXT, None, GREEDY, Stopping(4), "it")
        engine.add_request(request)
        while not engine.is_idle:
            engine.step()
    assert len(engine.scheduler.prefixes) == 1 == len(engine.runner.states)  # type: ignore[attr-defined]
    engine.resume(engine.runner, [], None)
    assert not len(engine.scheduler.prefixes) and not engine.runner.states  # type: ignore[attr-defined]


def test_a_mixture_that_begins_alike_yields_what_each_yields_alone(
    checkpoint_folder: Callable[[str], Path], llama: Engine
) -> None:
    engine = Engine.from_pretrained(
        str(checkpoint_folder("llama")), device="cpu", compile="on", step_times="off", prefix_reuse="all"
    )
    mixture = make_mixture(engine, 24, 11)
    for request in mixture.requests[::2]:
        request.prompt[:0] = TEXT[: 30 + 5 * len(request.prompt) % 60]
    check_mixture(run_mixture(engine, mixture), llama)


def test_settings_that_cannot_be() -> None:
    with pytest.raises(ValueError, match=r"scheduler\.max_prefixes=0 must be at least 1; .*prefix_reuse=off"):
        SchedulerSettings(max_prefixes=0).check()
