"""Ranks with little memory for keys and values, and not all with as much: they decide alike; the text is the same."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from lp import Autoregressive, Engine, Lookahead, Sampling, Stopping
from lp.kv_cache.contiguous import ContiguousMemory
from lp.model.checkpoint import ModelSettings, load
from lp.runner.single_device import SingleDevice
from lp.scheduling.kv_budget import KVBudget
from parallel.comm.channel import Channel
from parallel.mesh import Mesh
from parallel.runners.lookahead import LookaheadParallel
from parallel.runners.pipeline import PipelineParallel
from parallel.sharding.stages import read_stage
from tests.parallel.ranks import run_ranks
from tests.parallel.runners.test_pipeline_parallel import connect_stages

GREEDY = Sampling(temperature=0.0, seed=3)
PROMPTS = [[(3 + n + 7 * i) % 41 + 2 for i in range(230)] for n in range(4)]
METHODS = [Autoregressive(), Lookahead(3, 4, 3), Autoregressive(), Lookahead(5, 3, 5)]


def serve(engine: Engine) -> dict[str, list[int]]:
    for number, (prompt, decode) in enumerate(zip(PROMPTS, METHODS, strict=True)):
        stopping = Stopping(40, ignore_eos=True)
        engine.add_request(engine.request_builder.build(prompt, decode, GREEDY, stopping, request_id=str(number)))
    tokens: dict[str, list[int]] = {str(number): [] for number in range(len(PROMPTS))}
    while not engine.is_idle:
        for output in engine.step():
            tokens[output.request_id] += output.tokens
    return tokens


def serve_with_replicas(mesh: Mesh, channel: Channel, folder: str) -> tuple[dict[str, list[int]], int]:
    checkpoint = load(ModelSettings(folder, device="cpu"))
    memory = checkpoint.model.memory = ContiguousMemory(3, 4 + mesh.rank)
    room = KVBudget(channel.least(memory.num_pages))
    runner = LookaheadParallel(SingleDevice(checkpoint.model), channel)
    engine = Engine(checkpoint, runner, fingerprints=True, budget=room)
    return serve(engine), room.num_pages


def serve_with_stages(mesh: Mesh, channel: Channel, folder: str) -> dict[str, list[int]]:
    with closing(connect_stages(mesh)) as pipeline:
        checkpoint = load(ModelSettings(folder, device="cpu"), reader=read_stage(mesh.rank, mesh.num_ranks))
        memory = checkpoint.model.memory = ContiguousMemory(3, 4 + 2 * mesh.rank)  # a step has two sequences
        memory.keeps_states = checkpoint.model.is_recurrent
        memory.limit(channel.least(memory.num_pages))  # stages must lack the same tokens
        runner = PipelineParallel(checkpoint.model, pipeline, channel)
        return serve(Engine(checkpoint, runner, fingerprints=True, budget=KVBudget()))


@pytest.fixture(scope="module")
def expected(llama: Engine) -> dict[str, list[int]]:
    return serve(Engine(llama.checkpoint))


def test_replicas_of_different_size(checkpoint_folder: Callable[[str], Path], expected: dict[str, list[int]]) -> None:
    for tokens, num_pages in run_ranks(serve_with_replicas, 2, str(checkpoint_folder("llama"))):
        assert tokens == expected and num_pages == 4


@pytest.mark.parametrize("architecture", ["llama", "qwen3_next"])
def test_stages_of_different_size(architecture: str, checkpoint_folder: Callable[[str], Path]) -> None:
    folder = str(checkpoint_folder(architecture))
    expected = serve(Engine.from_pretrained(folder, device="cpu", step_times="off"))
    for tokens in run_ranks(serve_with_stages, 2, folder):
        assert tokens == expected
