"""On a GPU the host does not wait while it starts a step, and works on the step before while the device computes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from lp import Auto, Engine, Grammar, Sampling, Stopping
from lp.methods.autoregressive import Autoregressive
from lp.methods.lookahead import Lookahead
from lp.model.checkpoint import Checkpoint, ModelSettings, load
from lp.model.compilation import CompileMode
from lp.platform.hardware import Download
from lp.request import Completion, DecodingMethod
from lp.runner.runner import StepInput
from lp.runner.single_device import SingleDevice
from lp.scheduling.request_state import RequestState
from lp.tree import Answers
from tests.cuda_on_cpu.launches import Launches, observed
from tests.slow import slow_except

Folders = dict[str, Path]
pytestmark = pytest.mark.usefixtures("cuda")

PROMPT, NUM_TOKENS = [5, 9, 5, 9, 5, 7, 30, 31, 32, 5, 9], 14
SAMPLINGS = {
    "greedy": Sampling(temperature=0.0, seed=1),
    "temperature": Sampling(temperature=0.8, seed=1),
    "top-k and top-p": Sampling(temperature=0.8, top_k=20, top_p=0.9, seed=1),
    "penalties": Sampling(temperature=0.0, presence_penalty=0.5, repetition_penalty=1.2, seed=1),
    "logprobs": Sampling(temperature=0.0, logprobs=2, seed=1),
}


@pytest.fixture
def checkpoint(folders: Folders) -> Checkpoint:
    return load(ModelSettings(str(folders["llama"]), "float32", "cuda:0", compile=CompileMode.off))


class Diary(SingleDevice):
    """A runner that writes down when steps begin and end, and counts what the device is asked for in between.

    starting: operations of all starts. events: what has happened, in order.
    """

    def __init__(self, checkpoint: Checkpoint):
        super().__init__(checkpoint.model)
        self.events: list[str] = []
        self.starting = Launches()

    def start(self, steps: list[StepInput]) -> None:
        with observed(self.starting):
            super().start(steps)
        self.events.append("start")

    def finish(self) -> list[Answers]:
        self.events.append("finish")
        return super().finish()


def generate(engine: Engine, decode: DecodingMethod, sampling: Sampling) -> Completion:
    return engine.generate(PROMPT, decode=decode, sampling=sampling, stopping=Stopping(NUM_TOKENS, ignore_eos=True))


@pytest.mark.parametrize("name", slow_except(SAMPLINGS, "greedy", "top-k and top-p"))
def test_starting_a_step_does_not_wait(name: str, checkpoint: Checkpoint) -> None:
    runner = Diary(checkpoint)
    generate(Engine(checkpoint, runner), Auto(rows=12), SAMPLINGS[name])
    assert (runner.starting.blocking, runner.starting.waits) == (0, 0)
    assert runner.starting.kernels > 0 and runner.starting.to_host == runner.events.count("start")


@pytest.mark.parametrize("name", slow_except(SAMPLINGS, "temperature", "penalties"))
def test_a_grammar_adds_no_wait_and_changes_no_token(name: str, checkpoint: Checkpoint, folders: Folders) -> None:
    runner, grammar = Diary(checkpoint), Grammar("regex", "(ab|c){3,9}[0-9]{2}x")
    settings: dict[str, Any] = {"sampling": SAMPLINGS[name], "grammar": grammar, "max_new_tokens": 30}
    found = Engine(checkpoint, runner).generate(PROMPT, decode=Auto(rows=12), **settings)
    assert (runner.starting.blocking, runner.starting.waits) == (0, 0)
    expected = Engine.from_pretrained(str(folders["llama"]), device="cpu", step_times="off", compile="off").generate(
        PROMPT, decode=Autoregressive(), **settings
    )
    assert (found.token_ids, found.finish_reason) == (expected.token_ids, "stop")


def test_starting_a_step_of_a_graph_does_not_wait(folders: Folders) -> None:
    checkpoint = load(ModelSettings(str(folders["llama"]), "bfloat16", "cuda:0", compile=CompileMode.on))
    generate(Engine(checkpoint, Diary(checkpoint)), Auto(rows=12), SAMPLINGS["greedy"])  # captures
    runner = Diary(checkpoint)
    generate(Engine(checkpoint, runner), Auto(rows=12), SAMPLINGS["greedy"])
    assert (runner.starting.blocking, runner.starting.waits) == (0, 0)


def test_a_step_is_told_while_the_next_is_computed(checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    runner = Diary(checkpoint)
    engine = Engine(checkpoint, runner)
    for name in ("commit", "output"):
        call: Any = getattr(RequestState, name)
        monkeypatch.setattr(
            RequestState,
            name,
            lambda self, given, name=name, call=call: (runner.events.append(name), call(self, given))[1],
        )
    steps = generate(engine, Auto(rows=12), SAMPLINGS["greedy"]).stats.steps
    between = ["finish", "commit", "start", "output"]
    assert runner.events == ["start", *between * (steps - 1), "finish", "commit", "output"]


@pytest.mark.parametrize(
    "decode",
    slow_except([Auto(rows=12), Autoregressive(), Lookahead(3, 3, 3)], Auto(rows=12)),
    ids=lambda how: how.method,
)
@pytest.mark.parametrize("name", slow_except(SAMPLINGS, "greedy", "logprobs"))
def test_the_text_is_that_of_steps_one_after_the_other(
    name: str, decode: DecodingMethod, checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    overlapping = generate(Engine(checkpoint), decode, SAMPLINGS[name])
    monkeypatch.setattr(SingleDevice, "is_asynchronous", False)
    alone = generate(Engine(checkpoint), decode, SAMPLINGS[name])
    assert overlapping.token_ids == alone.token_ids and overlapping.text == alone.text
    assert overlapping.stats.steps == alone.stats.steps and overlapping.stats.accepted == alone.stats.accepted
    assert overlapping.logprobs == alone.logprobs


def test_what_is_copied_is_there_only_after_waiting() -> None:
    """Otherwise the other tests would pass for a runner that does not wait."""
    with observed(Launches()) as counted:
        download = Download(torch.arange(4, device="cuda"))
    assert (counted.to_host, counted.blocking, counted.waits) == (1, 0, 0)
    assert download._copy.tolist() != [0, 1, 2, 3]
    assert download.wait().tolist() == [0, 1, 2, 3]


@pytest.fixture
def two(checkpoint: Checkpoint) -> Iterator[Engine]:
    """An engine with two requests, which have had a step and have another under way."""
    engine = Engine(checkpoint)
    for name in ("a", "b"):
        stopping = Stopping(NUM_TOKENS, ignore_eos=True)
        engine.add_request(
            engine.request_builder.build(PROMPT, Auto(rows=8), SAMPLINGS["greedy"], stopping, request_id=name)
        )
    assert [output.request_id for output in engine.step()] == ["a", "b"]
    yield engine


def finish(engine: Engine, name: str) -> list[int]:
    found = []
    while not engine.is_idle:
        found += [token for output in engine.step() for token in output.tokens if output.request_id == name]
    return found


@pytest.mark.parametrize(("cancelled", "left"), slow_except([("a", "b"), ("b", "a")], ("a", "b")))
def test_a_request_is_cancelled_while_a_step_is_under_way(cancelled: str, left: str, two: Engine) -> None:
    before = two.generated()
    ended = two.abort(cancelled)
    assert ended is not None and ended.finish_reason == "cancelled" and two.num_running == 1
    tokens = before[left] + finish(two, left)
    assert tokens == generate(two, Autoregressive(), SAMPLINGS["greedy"]).token_ids
    assert isinstance(two.runner, SingleDevice) and not two.runner.states


@pytest.mark.slow
def test_requests_resume_from_a_step_under_way(two: Engine) -> None:
    requests = {}
    for name in ("a", "b"):
        stopping = Stopping(NUM_TOKENS, ignore_eos=True)
        requests[name] = two.request_builder.build(PROMPT, Auto(rows=8), SAMPLINGS["greedy"], stopping, request_id=name)
    known = two.generated()
    two.resume(two.runner, [(requests[name], known[name]) for name in ("b", "a")], None)
    expected = generate(Engine(two.checkpoint), Autoregressive(), SAMPLINGS["greedy"]).token_ids
    assert known["a"] + finish(two, "a") == expected


class FailsOnce(SingleDevice):
    """A runner whose third start fails."""

    num_starts = 0

    def start(self, steps: list[StepInput]) -> None:
        self.num_starts += 1
        if self.num_starts == 3:
            raise MemoryError("no room")
        super().start(steps)


def test_what_a_step_has_yielded_outlives_a_failed_start(checkpoint: Checkpoint) -> None:
    engine = Engine(checkpoint, FailsOnce(checkpoint.model))
    for name in ("a", "b"):
        stopping = Stopping(9, ignore_eos=True)
        request = engine.request_builder.build(PROMPT, Autoregressive(), SAMPLINGS["greedy"], stopping, name)
        engine.add_request(request)
    found = {name: list[int]() for name in ("a", "b")}
    for output in engine.step():
        found[output.request_id] += output.tokens
    with pytest.raises(MemoryError, match="no room"):
        engine.step()
    assert not engine.is_idle
    while not engine.is_idle:
        for output in engine.step():
            found[output.request_id] += output.tokens
    expected = generate(Engine(checkpoint), Autoregressive(), SAMPLINGS["greedy"]).token_ids[:9]
    assert found == {"a": expected, "b": expected}


def test_a_stream_whose_start_fails_ends(checkpoint: Checkpoint) -> None:
    engine = Engine(checkpoint, FailsOnce(checkpoint.model))
    stream = engine.stream(PROMPT, decode=Autoregressive(), sampling=SAMPLINGS["greedy"], max_new_tokens=9)
    with pytest.raises(MemoryError, match="no room"):
        list(stream)
    assert engine.step() == []
    assert engine.is_idle
    assert len(generate(engine, Autoregressive(), SAMPLINGS["greedy"]).token_ids) == NUM_TOKENS
