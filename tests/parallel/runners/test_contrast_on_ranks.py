"""Contrastive decoding and best_of yield the same texts however many ranks compute their trees.

The second model is whole on every rank, under tensor and pipeline parallelism as well.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from lp import BestOf, Contrastive, Engine, Sampling, SecondModel, Stopping
from lp.model.checkpoint import ModelSettings, load
from lp.model.second_model import SECOND, SecondModelExtension
from lp.request import DecodingMethod
from lp.runner.single_device import SingleDevice
from parallel.build import share_steps
from parallel.comm.base import Collectives
from parallel.comm.channel import Channel
from parallel.mesh import Mesh
from parallel.runners.lookahead import LookaheadParallel
from parallel.runners.pipeline import PipelineParallel
from parallel.runners.tensor import TensorParallel
from parallel.sharding.stages import read_stage
from parallel.sharding.tensor import read_sharded
from tests.parallel.ranks import run_ranks
from tests.parallel.runners.test_lookahead_parallel import PROMPTS
from tests.parallel.runners.test_packed_on_ranks import connect
from tests.slow import slow_except

DECODES: list[tuple[DecodingMethod, float]] = [
    (Contrastive(), 0.0),
    (Contrastive("lookahead", weight=0.5), 0.8),
    (BestOf(num_samples=3, num_return_sequences=3), 0.8),
    (BestOf("lookahead", 3, 3, ranked_by="second"), 0.8),
]
Found = list[tuple[list[int], list[list[int]]]]


def decoded(engine: Engine) -> Found:
    """All texts one after the other, then all at the same time."""
    stopping = Stopping(12, ignore_eos=True)
    requests = [
        engine.request_builder.build(prompt, decode, Sampling(temperature=temperature, seed=5), stopping)
        for decode, temperature in DECODES
        for prompt in PROMPTS
    ]
    found: dict[str, tuple[list[int], list[list[int]]]] = {}
    for together in (*([one] for one in requests[::2]), requests):
        for request in together:
            assert engine.add_request(request) is None
        while not engine.is_idle:
            for output in engine.step():
                if output.finish_reason and output.beams:
                    found[output.request_id] = output.tokens, [one.token_ids for one in output.beams.texts]
                elif not output.beams and output.tokens:
                    before = found.get(output.request_id, ([], []))[0]
                    before = [] if len(before) == 12 else before
                    found[output.request_id] = [*before, *output.tokens], []
    return [found[request.id] for request in requests]


def make_engine(channel: Channel, axis: str, parts: Collectives | None, folders: list[str]) -> Engine:
    model, second = folders
    reader = None
    if parts is not None:
        reader = read_sharded(parts) if axis == "tp" else read_stage(parts.rank, parts.num_ranks)
    other = [SecondModelExtension(SECOND, SecondModel(second))]
    checkpoint = load(ModelSettings(model, device="cpu"), reader=reader, extensions=other)
    runner: Any
    if parts is None:
        runner = LookaheadParallel(SingleDevice(checkpoint.model, prefill_chunk=64), channel)
    elif axis == "pp":
        runner = PipelineParallel(checkpoint.model, parts, channel, prefill_chunk=64)
    else:
        runner = share_steps(TensorParallel(checkpoint.model, parts, prefill_chunk=64), channel, ranks_per_replica=2)
    return Engine(checkpoint, runner, fingerprints=True)


def serve(mesh: Mesh, channel: Channel, axis: str, folders: list[str]) -> Found:
    if axis == "lp":
        return decoded(make_engine(channel, axis, None, folders))
    with closing(connect(mesh, axis)) as parts:
        return decoded(make_engine(channel, axis, parts, folders))


@pytest.fixture(scope="module")
def folders(checkpoint_folder: Callable[[str], Path]) -> list[str]:
    return [str(checkpoint_folder(name)) for name in ("llama", "qwen2")]


@pytest.fixture(scope="module")
def expected(folders: list[str]) -> Found:
    second = SecondModel(folders[1])
    return decoded(Engine.from_pretrained(folders[0], device="cpu", step_times="off", second=second))


@pytest.mark.parametrize(("axis", "num_ranks"), slow_except([("lp", 2), ("tp", 2), ("pp", 2), ("lp", 3)], ("lp", 2)))
def test_ranks_change_nothing(axis: str, num_ranks: int, folders: list[str], expected: Found) -> None:
    assert all(found == expected for found in run_ranks(serve, num_ranks, axis, folders, limit_s=200))
