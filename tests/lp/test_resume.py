"""A request continues from its token ids, with or without KV caches, from any point and with any method."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from lp import Auto, Autoregressive, Engine, Jacobi, Lookahead, PromptLookup, Sampling, Stopping
from lp.request import Completion, DecodingMethod, Output, Request
from lp.runner.runner import StepInput
from lp.runner.single_device import SingleDevice
from lp.statistics import Statistics
from tests.slow import slow_except

PROMPT = [5, 9, 5, 9, 5, 7, 30, 31, 32, 5, 9]
NUM_TOKENS = 40
METHODS: list[DecodingMethod] = [
    Auto(rows=24),
    Autoregressive(),
    Jacobi(6),
    Jacobi("auto"),
    PromptLookup(4, 5),
    Lookahead(5, 4, 5),
    Lookahead(5, 4, 5, prompt_drafts=False),
]
GREEDY = Sampling(temperature=0.0, seed=0)
SAMPLED = Sampling(temperature=0.9, top_p=0.9, repetition_penalty=1.2, presence_penalty=0.4, seed=7)


@pytest.fixture
def engine(llama: Engine) -> Engine:
    """An engine of this test alone."""
    return Engine(llama.checkpoint)


def request_of(engine: Engine, decode: DecodingMethod, sampling: Sampling, name: str = "it", **stopping) -> Request:
    stop = Stopping(NUM_TOKENS, **{"ignore_eos": True, **stopping})
    return engine.request_builder.build(PROMPT, decode, sampling, stop, request_id=name)


def finish(engine: Engine, name: str, done: Completion) -> Completion:
    """Runs the engine until the request is complete, and adds its output to `done`."""
    while done.finish_reason is None:
        (output,) = engine.step()
        if output.request_id == name:
            done.extend(output)
    return done


def whole(engine: Engine, request: Request) -> Completion:
    """The whole output of a request that nothing interrupts."""
    engine.add_request(request)
    return finish(engine, request.id, Completion())


def completion_of(output: Output) -> Completion:
    """A completion that starts with what was replayed."""
    done = Completion()
    done.extend(output)
    return done


@pytest.mark.parametrize("sampling", slow_except([GREEDY, SAMPLED], SAMPLED), ids=["greedy", "sampled"])
@pytest.mark.parametrize(
    "decode",
    slow_except(METHODS, Auto(rows=24), Autoregressive(), Lookahead(5, 4, 5)),
    ids=lambda decode: decode.method,
)
def test_a_resumed_request_gives_the_same_tokens_and_text(
    decode: DecodingMethod, sampling: Sampling, engine: Engine
) -> None:
    request = request_of(engine, decode, sampling)
    expected = whole(engine, request)
    for num_known in (0, 1, 17, NUM_TOKENS - 1):
        for caches_stay in (True, False):
            runner = SingleDevice(engine.checkpoint.model)
            another = Engine(engine.checkpoint, runner)
            if caches_stay:
                another.add_request(request)
                another.step()
                another.step()
            (replayed,) = another.resume(runner, [(request, expected.token_ids[:num_known])], None)
            assert replayed.tokens == expected.token_ids[:num_known] and replayed.finish_reason is None
            done = finish(another, "it", completion_of(replayed))
            assert (done.token_ids, done.text) == (expected.token_ids, expected.text), (num_known, caches_stay)
            assert done.stats.tokens == NUM_TOKENS
            assert another.is_idle and not runner.states


def test_an_abandoned_step_leaves_nothing_behind(engine: Engine) -> None:
    request = request_of(engine, Lookahead(5, 4, 5), GREEDY)
    expected = whole(engine, request)
    engine.add_request(request)
    engine.step()
    assert isinstance(engine.runner, SingleDevice)
    (generation,) = engine.scheduler
    engine.runner.start([StepInput.of(generation.sequence, generation.plan(50))])  # nobody waits for its answers
    (replayed,) = engine.resume(engine.runner, [(request, engine.generated()["it"])], None)
    assert finish(engine, "it", completion_of(replayed)).token_ids == expected.token_ids


def test_a_request_whose_known_tokens_contain_its_end_is_complete(engine: Engine) -> None:
    request = request_of(engine, Autoregressive(), GREEDY)
    expected = whole(engine, request)
    (replayed,) = engine.resume(engine.runner, [(request, expected.token_ids)], None)
    assert (replayed.finish_reason, replayed.text) == ("length", expected.text)
    stop = expected.text[len(expected.text) // 2 :][:3]
    cut = request_of(engine, Autoregressive(), GREEDY, stop=[stop])
    (replayed,) = engine.resume(engine.runner, [(cut, expected.token_ids)], None)
    assert replayed.finish_reason == "stop" and replayed.text == expected.text[: expected.text.find(stop)]
    assert engine.is_idle and not engine.runner.states  # type: ignore[attr-defined]


def test_requests_that_are_not_resumed_are_dropped_and_others_take_turns_as_listed(engine: Engine) -> None:
    names = ["a", "b", "c"]
    requests = {name: request_of(engine, Autoregressive(), GREEDY, name) for name in names}
    for request in requests.values():
        engine.add_request(request)
    generated = {output.request_id: output.tokens for output in engine.step()}
    assert engine.generated() == generated
    engine.resume(engine.runner, [(requests[name], generated[name]) for name in ("c", "a")], None)
    assert sorted(engine.runner.states) == ["a", "c"]  # type: ignore[attr-defined]
    assert [output.request_id for _ in range(2) for output in engine.step()] == ["c", "a", "c", "a"]
    assert engine.resume(engine.runner, [], None) == [] and engine.is_idle


def test_engines_with_different_pasts_have_the_same_state_after_resuming(
    engine: Engine, engine_of: Callable[[str], Engine]
) -> None:
    other, request = Engine(engine.checkpoint), request_of(engine, Auto(rows=24), GREEDY)
    whole(engine, request_of(engine, Auto(rows=24), GREEDY, "earlier"))
    for one in (engine, other):
        one.resume(one.runner, [(request, [5, 9, 5])], None)
    for _ in range(5):
        assert next(iter(engine.scheduler)).fingerprint() == next(iter(other.scheduler)).fingerprint()
        assert engine.step()[0].tokens == other.step()[0].tokens


def test_progress_survives_json(engine: Engine) -> None:
    request = request_of(engine, Auto(rows=24), Sampling(temperature=0.0, seed=0, logprobs=2))
    engine.add_request(request)
    for _ in range(3):
        (output,) = engine.step()
        decoded = Output.from_dict(output.to_dict())
        assert (decoded.tokens, decoded.text, decoded.logprobs) == (output.tokens, output.text, output.logprobs)
        assert decoded.stats.to_dict() == output.stats.to_dict()


def test_statistics_before_and_after_add_up() -> None:
    before, after = Statistics(prompt_tokens=3), Statistics(prompt_tokens=3)
    before.tokens, before.steps, before.rows, before.ttft_s, before.decode_s = 10, 4, 40, 0.5, 1.0
    before.accepted_lengths.update({2: 3, 4: 1})
    after.tokens, after.steps, after.rows, after.ttft_s, after.decode_s = 16, 2, 30, 0.1, 0.25
    after.accepted_lengths.update({2: 1, 4: 1})
    both = after.after(before)
    assert (both.tokens, both.steps, both.rows, both.ttft_s, both.decode_s) == (16, 6, 70, 0.5, 1.25)
    assert both.accepted_lengths == {2: 4, 4: 2}
    assert after.after(Statistics()).ttft_s == 0.1
