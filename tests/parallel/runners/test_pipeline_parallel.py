"""Pipeline parallelism on real ranks: it gives the tokens of one device and keeps as many steps under way as stages."""

from __future__ import annotations

import itertools
import os
from collections import deque
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from lp import Autoregressive, Engine, Lookahead, Sampling, Stopping
from lp.engine.builder import EngineSettings
from lp.model.causal import CausalModel
from lp.model.checkpoint import ModelSettings, load
from lp.model.compilation import CompileMode
from lp.model.memory import num_weight_bytes
from lp.request import DecodingMethod, Request, Sequence
from lp.runner.runner import StepInput
from lp.tree import Answers
from parallel.comm.base import Collectives
from parallel.comm.channel import Channel
from parallel.comm.connect import connect_axis
from parallel.errors import RankLost, StateDiverged
from parallel.groups.messages import Abort, AddRequest
from parallel.groups.worker import run_engine
from parallel.mesh import ExchangeKind, Mesh, ParallelSettings, open_store
from parallel.runners.pipeline import PipelineParallel
from parallel.sharding.stages import read_stage
from tests.models import generate_greedily, load_reference, save_checkpoint
from tests.parallel.groups.test_worker import Script
from tests.parallel.ranks import run_ranks, run_ranks_to_end
from tests.slow import exhaustive_except

ARCHITECTURES = ["llama", "qwen3", "mistral", "gemma2"]
NUM_LAYERS, HIDDEN = 4, 32
CHUNK, NEW_TOKENS = 16, 16
LONG = [(3 + 7 * i) % 41 + 2 for i in range(70)]
PROMPTS = [[5, 9, 5, 9, 5], LONG]
METHODS: list[DecodingMethod] = [Autoregressive(), Lookahead(5, 4, 5)]
GREEDY = Sampling(temperature=0.0, seed=3)
SAMPLED = Sampling(temperature=0.9, top_p=0.95, repetition_penalty=1.1, presence_penalty=0.3, seed=11, logprobs=2)
# Prompts of requests that are served side by side, by the request's id.
FIVE = {str(number): [number + 2, *PROMPTS[number % 2]] for number in range(5)}


class Recorded(PipelineParallel):
    """Remembers whose steps are under way, and the most batches that were at once."""

    def __init__(self, model: CausalModel, pipeline: Collectives, channel: Channel):
        super().__init__(model, pipeline, channel, CHUNK)
        self.under_way, self.most = deque[set[str]](), 0

    def start(self, steps: list[StepInput]) -> None:
        super().start(steps)
        self.under_way.append({step.sequence.id for step in steps})
        self.most = max(self.most, len(self.under_way))

    def finish(self) -> list[Answers]:
        self.under_way.popleft()
        return super().finish()

    def close(self, sequence: Sequence) -> None:
        assert not any(sequence.id in batch for batch in self.under_way), (
            "a sequence is closed while a step of it is under way"
        )
        super().close(sequence)


def connect_stages(mesh: Mesh, exchange: str = "shm") -> Collectives:
    settings = ParallelSettings(exchange=ExchangeKind(exchange), timeout_s=20.0)
    return connect_axis(settings, replace(mesh, axes={"pp": mesh.num_ranks}), "pp")


def stage_engine(
    channel: Channel, pipeline: Collectives, folder: str, compiled: bool = False, dtype: str = "float32"
) -> tuple[Engine, Recorded]:
    reader = read_stage(pipeline.rank, pipeline.num_ranks)
    settings = ModelSettings(folder, dtype, "cpu", compile=CompileMode.on if compiled else CompileMode.auto)
    checkpoint = load(settings, reader=reader, group=pipeline)
    assert (checkpoint.model.fast is not None) == compiled
    runner = Recorded(checkpoint.model, pipeline, channel)
    return Engine(checkpoint, runner, fingerprints=True), runner


def request(engine: Engine, name: str, decode: DecodingMethod = METHODS[1], sampling: Sampling = GREEDY) -> Request:
    stopping = Stopping(NEW_TOKENS, ignore_eos=True)
    return engine.request_builder.build(FIVE[name], decode, sampling, stopping, request_id=name)


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    """Folders of tiny models with a layer for each of four stages, by architecture."""

    @cache
    def folder(architecture: str) -> str:
        return str(save_checkpoint(tmp_path_factory.mktemp(architecture), architecture, num_hidden_layers=NUM_LAYERS))

    return folder


class Texts(NamedTuple):
    """What one model generates.

    greedy: tokens for each method and prompt. sampled: for each method, tokens and their log-probabilities.
    """

    greedy: list[list[int]]
    sampled: list[tuple[list[int], list[float]]]


def texts_of(engine: Engine) -> Texts:
    def generate(prompt: list[int], decode: DecodingMethod, sampling: Sampling) -> tuple[list[int], list[float]]:
        stopping = Stopping(NEW_TOKENS, ignore_eos=True)
        done = engine.generate(prompt, decode=decode, sampling=sampling, stopping=stopping)
        return done.token_ids, [entry.logprob for entry in done.logprobs or []]

    return Texts(
        [generate(prompt, decode, GREEDY)[0] for decode in METHODS for prompt in PROMPTS],
        [generate(LONG, decode, SAMPLED) for decode in METHODS],
    )


def texts_of_all(
    mesh: Mesh, channel: Channel, exchange: str, folders: list[str], compiled: bool, dtype: str = "float32"
) -> list[Texts]:
    with closing(connect_stages(mesh, exchange)) as pipeline:  # no stage may exit before its last answers arrive
        return [texts_of(stage_engine(channel, pipeline, folder, compiled, dtype)[0]) for folder in folders]


@pytest.fixture(scope="module")
def expected_of(folder_of: Callable[[str], str]) -> Callable[[str], Texts]:
    """Greedy tokens of transformers' `generate`, and tokens sampled on a single device, by architecture."""

    @cache
    def expected(architecture: str) -> Texts:
        reference = load_reference(Path(folder_of(architecture)))
        greedy = [generate_greedily(reference, prompt, NEW_TOKENS) for prompt in PROMPTS]
        alone = texts_of(Engine.from_pretrained(folder_of(architecture), device="cpu"))
        return Texts(greedy * len(METHODS), [alone.sampled[0]] * len(METHODS))

    return expected


@pytest.mark.parametrize(
    ("architectures", "compiled", "num_ranks", "exchange"),
    exhaustive_except(
        [
            *itertools.product([ARCHITECTURES], [False, True], [2, 4], ["gloo", "shm"]),
            (["gemma2", "qwen3"], True, 2, "shm"),
            (["llama"], True, 4, "gloo"),
        ],
        (ARCHITECTURES, False, 2, "gloo"),
        (ARCHITECTURES, False, 4, "shm"),
        (["gemma2", "qwen3"], True, 2, "shm"),
        (["llama"], True, 4, "gloo"),
    ),
)
def test_tokens_are_those_of_one_device(
    architectures: list[str], compiled: bool, num_ranks: int, exchange: str, folder_of: Callable[[str], str],
    expected_of: Callable[[str], Texts],
) -> None:  # fmt: skip
    folders = [folder_of(architecture) for architecture in architectures]
    for found in run_ranks(texts_of_all, num_ranks, exchange, folders, compiled, exchange=exchange):
        for architecture, texts in zip(architectures, found, strict=True):
            wanted = expected_of(architecture)
            assert texts.greedy == wanted.greedy, architecture
            for (tokens, logprobs), (right, right_logprobs) in zip(texts.sampled, wanted.sampled, strict=True):
                assert tokens == right, architecture
                np.testing.assert_allclose(logprobs, right_logprobs, atol=1e-4)


def test_compiled_stages_give_the_text_of_generate(folder_of: Callable[[str], str]) -> None:
    reference = load_reference(Path(folder_of("llama")))
    greedy = [generate_greedily(reference, prompt, NEW_TOKENS) for prompt in PROMPTS]
    for (texts,) in run_ranks(texts_of_all, 2, "shm", [folder_of("llama")], True):
        assert texts.greedy == greedy * len(METHODS)


@pytest.mark.parametrize("architecture", exhaustive_except(ARCHITECTURES, "gemma2"))
def test_compiled_stages_give_the_text_of_one_rank_in_bfloat16(
    architecture: str, folder_of: Callable[[str], str]
) -> None:
    settings = ModelSettings(folder_of(architecture), "bfloat16", "cpu", compile=CompileMode.on)
    alone = texts_of(Engine.assemble(EngineSettings(settings)))
    for (found,) in run_ranks(texts_of_all, 3, "shm", [folder_of(architecture)], True, "bfloat16"):
        assert found.greedy == alone.greedy and found.sampled == alone.sampled


def serve_five(mesh: Mesh, channel: Channel, folder: str) -> tuple[dict[str, list[int]], int, int]:
    """Tokens of five requests, one of which is cancelled under way; most steps under way at once; number of steps."""
    engine, runner = stage_engine(channel, connect_stages(mesh), folder)
    tokens: dict[str, list[int]] = {name: [] for name in FIVE}
    for name in tokens:
        engine.add_request(request(engine, name))
    while not engine.is_idle:
        for output in engine.step():
            tokens[output.request_id] += output.tokens
        in_flight = any("1" in batch for batch in runner.under_way)
        if in_flight and len(tokens["1"]) >= 3 and "1" in engine.generated():
            assert engine.abort("1") and engine.abort("1") is None
    assert not runner.states and not runner.under_way
    return tokens, runner.most, channel.num_steps


@pytest.mark.parametrize("num_ranks", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_steps_of_as_many_requests_as_stages_overlap(num_ranks: int, folder_of: Callable[[str], str]) -> None:
    alone = Engine.from_pretrained(folder_of("llama"), device="cpu")
    results = run_ranks(serve_five, num_ranks, folder_of("llama"))
    assert all(result == results[0] for result in results)
    tokens, most, num_steps = results[0]
    assert most == num_ranks
    num_steps_alone, stopping = 0, Stopping(NEW_TOKENS, ignore_eos=True)
    for name, prompt in FIVE.items():
        done = alone.generate(prompt, decode=METHODS[1], sampling=GREEDY, stopping=stopping)
        num_steps_alone += done.stats.steps
        assert tokens[name] == done.token_ids[: len(tokens[name])]
        assert len(tokens[name]) == NEW_TOKENS or name == "1"
    assert 3 <= len(tokens["1"]) < NEW_TOKENS
    assert num_steps < num_steps_alone


class Costs(NamedTuple):
    """What a rank holds and sends for one request.

    num_layers: layers that it holds. weights, cache: bytes that it holds. messages, num_bytes: what it has sent.
    """

    num_layers: int
    weights: int
    cache: int
    steps: int
    messages: int
    num_bytes: int


def costs(mesh: Mesh, channel: Channel, folder: str) -> Costs:
    """The costs of a request whose prompt fits into one chunk, decoded token by token."""
    pipeline = connect_stages(mesh)
    engine, runner = stage_engine(channel, pipeline, folder)
    before = replace(pipeline.traffic)
    engine.add_request(request(engine, "0", Autoregressive()))
    steps = engine.step()[0].stats.steps
    cached = runner.states["0"].cache.num_bytes
    while not engine.is_idle:
        steps = engine.step()[0].stats.steps
    model = engine.checkpoint.model
    sent = pipeline.traffic - before
    return Costs(len(model.layers), num_weight_bytes(model.model), cached, steps, sent.num_collectives, sent.bytes_sent)


@pytest.mark.parametrize("num_ranks", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_memory_and_messages_of_a_rank(num_ranks: int, folder_of: Callable[[str], str]) -> None:
    whole = run_ranks(costs, 1, folder_of("llama"))[0]
    ranks = run_ranks(costs, num_ranks, folder_of("llama"))
    assert sum(rank.num_layers for rank in ranks) == whole.num_layers == NUM_LAYERS
    assert sum(rank.weights for rank in ranks) == whole.weights
    assert max(rank.weights for rank in ranks) < 1.4 * whole.weights / num_ranks
    assert [rank.cache * NUM_LAYERS for rank in ranks] == [whole.cache * rank.num_layers for rank in ranks]
    num_rows = len(FIVE["0"]) + NEW_TOKENS - 1
    for rank in ranks[:-1]:  # hidden states to the next stage
        assert rank.messages == rank.steps == NEW_TOKENS
        assert rank.num_bytes == 4 * HIDDEN * num_rows + 8 * num_ranks * rank.steps
    assert ranks[-1].messages == ranks[-1].steps * (num_ranks - 1)  # a token to every other stage
    assert ranks[-1].num_bytes == ranks[-1].messages * (4 + 8 * num_ranks)
    assert whole.messages == 0


def serve_commands(mesh: Mesh, channel: Channel, folder: str) -> tuple[dict[str, list[int]], dict[str, str]]:
    """Tokens and finish reasons of requests whose commands reach the ranks while steps are under way."""
    engine, _ = stage_engine(channel, connect_stages(mesh), folder)
    script = Script(
        [
            (0, AddRequest(request(engine, "0"))),
            (0, AddRequest(request(engine, "1", METHODS[0]))),
            (3, AddRequest(request(engine, "2", METHODS[0], SAMPLED))),
            (9, Abort("1")),
            (10, AddRequest(request(engine, "3"))),
        ]
    )
    inbox = script if mesh.rank == 0 else None
    record = script if inbox else Script([])
    run_engine(engine, channel, inbox, record.emit)
    tokens: dict[str, list[int]] = {}
    endings: dict[str, str] = {}
    for output in record.emitted:
        tokens.setdefault(output.request_id, []).extend(output.tokens)
        if output.finish_reason:
            endings[output.request_id] = output.finish_reason
    return tokens, endings


def test_commands_reach_all_stages_at_the_same_step(folder_of: Callable[[str], str]) -> None:
    results = run_ranks(serve_commands, 3, folder_of("llama"))
    assert all(result == results[0] for result in results)
    tokens, endings = results[0]
    assert endings == {"0": "length", "1": "cancelled", "2": "length", "3": "length"}
    assert len(tokens["0"]) == len(tokens["2"]) == len(tokens["3"]) == NEW_TOKENS
    assert 0 < len(tokens["1"]) < NEW_TOKENS


def diverge(mesh: Mesh, channel: Channel, folder: str) -> tuple[int, int, str]:
    """The second stage has another seed for the window of the second request.

    Returns the rank and the step that are reported, and the request of the first step.
    """
    engine, _ = stage_engine(channel, connect_stages(mesh), folder)
    engine.add_request(request(engine, "0"))
    engine.add_request(request(engine, "1", sampling=replace(GREEDY, seed=mesh.rank == 1)))
    first = engine.step()[0].request_id
    with pytest.raises(StateDiverged) as caught:
        engine.step()
    return caught.value.rank, caught.value.step, first


def test_a_diverging_stage_is_named_with_its_first_step(folder_of: Callable[[str], str]) -> None:
    assert run_ranks(diverge, 3, folder_of("llama")) == [(1, 2, "0")] * 3


def lose_a_stage(mesh: Mesh, channel: Channel, exchange: str, folder: str) -> tuple[int, ...]:
    """The second stage exits in the middle of a request. Returns the ranks that the others report as lost."""
    engine, _ = stage_engine(channel, connect_stages(mesh, exchange), folder)
    stream = engine.stream(LONG, decode=Autoregressive(), sampling=GREEDY)
    for _ in range(3):
        next(stream)
    store = open_store(mesh, 20)
    store.set(f"has its tokens: {mesh.rank}", "yes")
    if mesh.rank == 1:  # a connection that is closed before may lose what was sent
        store.wait([f"has its tokens: {rank}" for rank in range(mesh.num_ranks)])
        os._exit(1)
    with pytest.raises(RankLost) as caught:
        next(stream)
    assert engine.is_idle
    return caught.value.ranks


@pytest.mark.parametrize(
    ("architecture", "num_ranks", "exchange"),
    [("llama", 3, "shm"), ("llama", 3, "gloo"), ("qwen3_next", 2, "shm"), ("qwen3_next", 2, "gloo")],
)
def test_a_lost_stage_is_named_by_all_others(
    architecture: str, num_ranks: int, exchange: str, folder_of: Callable[[str], str]
) -> None:
    outcomes = run_ranks_to_end(lose_a_stage, num_ranks, exchange, folder_of(architecture), exchange=exchange)
    assert [outcome.result for outcome in outcomes] == [(1,), None, (1,)][:num_ranks], outcomes
