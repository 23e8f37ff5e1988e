"""Requests that begin like one that is still running wait for what that computes, and begin from it."""

from __future__ import annotations

import pytest

from lp import Autoregressive, Engine, Sampling, Stopping
from lp.request import Completion, Request
from lp.scheduling.kv_budget import KVBudget
from lp.scheduling.prefix_cache import LEAST_TOKENS
from lp.scheduling.settings import PrefixReuse, SchedulerSettings
from tests.mixture import check_mixture, make_mixture, run_mixture
from tests.slow import slow_except

OWNER = SchedulerSettings(prefix_reuse=PrefixReuse.owner)
TEXT = [(7 * at + 3) % 190 + 2 for at in range(120)]


def choice(engine: Engine, number: int, prompt: list[int], owner: str | None = None, **settings) -> Request:
    sampling = Sampling(temperature=0.9, seed=number, **settings)
    stopping = Stopping(12, ignore_eos=True)
    return engine.request_builder.build(prompt, Autoregressive(), sampling, stopping, str(number), owner)


def run(engine: Engine, requests: list[Request]) -> tuple[list[Completion], int]:
    """What the requests yield together, and the rows of all steps."""
    found = {request.id: Completion() for request in requests}
    for request in requests:
        assert engine.add_request(request) is None
    num_rows = 0
    while not engine.is_idle:
        for output in engine.step():
            found[output.request_id].extend(output)
            num_rows += output.engine.rows if output.engine else 0
    return list(found.values()), num_rows


def check(found: list[Completion], requests: list[Request], alone: Engine) -> None:
    for completion, request in zip(found, requests, strict=True):
        expected = alone.generate(request.prompt, sampling=request.sampling, stopping=request.stopping)
        assert completion.token_ids == expected.token_ids


def test_the_choices_of_a_prompt_compute_it_once(llama: Engine) -> None:
    engine = Engine(llama.checkpoint, scheduler=OWNER)
    requests = [choice(engine, number, TEXT) for number in range(4)]
    found, num_rows = run(engine, requests)
    check(found, requests, llama)
    assert [one.stats.cached_tokens for one in found] == [0, *[len(TEXT) - 1] * 3]
    assert num_rows == len(TEXT) - 1 + 4 * 12


@pytest.mark.parametrize("max_step_rows", [4, None])
def test_prompts_with_a_common_beginning(llama: Engine, max_step_rows: int | None) -> None:
    """While one is fed in chunks, the others wait only for what they share with it."""
    engine = Engine(
        llama.checkpoint, scheduler=SchedulerSettings(max_step_rows=max_step_rows, prefix_reuse=PrefixReuse.owner)
    )
    requests = [choice(engine, number, [*TEXT[: 90 - 20 * number], 5 + number, *TEXT[:20]]) for number in range(3)]
    found, _ = run(engine, requests)
    check(found, requests, llama)
    assert [one.stats.cached_tokens for one in found] == [0, 70, 50]


def test_who_must_not_share_waits_for_nobody(llama: Engine) -> None:
    engine = Engine(llama.checkpoint, scheduler=OWNER)
    requests = [choice(engine, 0, TEXT, "a"), choice(engine, 1, TEXT, "b"), choice(engine, 2, TEXT[:LEAST_TOKENS], "a")]
    found, _ = run(engine, requests)
    check(found, requests, llama)
    assert [one.stats.cached_tokens for one in found] == [0, 0, 0]
    off = Engine(llama.checkpoint)
    found, _ = run(off, [choice(off, number, TEXT) for number in range(2)])
    assert [one.stats.cached_tokens for one in found] == [0, 0]


def test_a_prompt_that_is_scored_is_begun_from_and_begins_from_none(llama: Engine) -> None:
    engine = Engine(llama.checkpoint, scheduler=OWNER)
    requests = [choice(engine, 0, TEXT, prompt_logprobs=0), choice(engine, 1, TEXT)]
    requests.append(choice(engine, 2, TEXT, prompt_logprobs=0))
    found, _ = run(engine, requests)
    check(found, requests, llama)
    assert [one.stats.cached_tokens for one in found] == [0, len(TEXT) - 1, 0]
    assert found[0].prompt_logprobs == found[2].prompt_logprobs


def test_one_that_is_waited_for_may_be_cancelled(llama: Engine) -> None:
    engine = Engine(llama.checkpoint, scheduler=SchedulerSettings(max_step_rows=4, prefix_reuse=PrefixReuse.owner))
    stream = engine.request_builder.build([3, 4], Autoregressive(), Sampling(0.0, seed=0), Stopping(90), "stream")
    engine.add_request(stream)
    engine.step()
    first, second = choice(engine, 0, TEXT), choice(engine, 1, TEXT)
    engine.add_request(first)
    engine.add_request(second)
    for _ in range(3):
        engine.step()
    assert engine.abort("0")
    found = Completion()
    while not engine.is_idle:
        for output in engine.step():
            if output.request_id == "1":
                found.extend(output)
    check([found], [second], llama)


def test_a_kept_sequence_that_has_more_is_taken(llama: Engine) -> None:
    engine = Engine(llama.checkpoint, scheduler=OWNER)
    run(engine, [choice(engine, 9, TEXT)])
    requests = [choice(engine, 0, [*TEXT[:30], 5]), choice(engine, 1, TEXT)]
    found, _ = run(engine, requests)
    check(found, requests, llama)
    assert [one.stats.cached_tokens for one in found] == [30, len(TEXT) - 1]


@pytest.mark.parametrize(("num_pages", "max_step_rows"), slow_except([(3, 8), (7, None), (100, 24)], (3, 8)))
def test_a_mixture_with_common_beginnings(llama: Engine, num_pages: int, max_step_rows: int | None) -> None:
    settings = SchedulerSettings(max_step_rows=max_step_rows, prefix_reuse=PrefixReuse.all)
    engine = Engine(llama.checkpoint, budget=KVBudget(num_pages), scheduler=settings)
    mixture = run_mixture(engine, make_mixture(engine, 24, 11, beginning=TEXT[:40]))
    check_mixture(mixture, llama)
    assert num_pages == 3 or any(cached >= 40 for cached in mixture.cached.values())
