"""Drafts of a second model on real ranks: every rank drafts alone, and all get the tokens of a single device."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from lp import Autoregressive, DraftModel, Engine, Sampling, SecondModel, Stopping
from lp.model.checkpoint import ModelSettings, load
from lp.model.quantization.quantize import Weights
from lp.model.second_model import SecondModelExtension
from lp.request import Completion
from lp.runner.single_device import SingleDevice
from parallel.comm.base import Collectives
from parallel.comm.channel import Channel
from parallel.mesh import Mesh
from parallel.runners.lookahead import LookaheadParallel
from parallel.runners.pipeline import PipelineParallel
from parallel.runners.tensor import TensorParallel
from parallel.sharding.stages import read_stage
from parallel.sharding.tensor import read_sharded
from tests.lp.test_lossless import make_prompt
from tests.parallel.ranks import run_ranks
from tests.parallel.runners.test_packed_on_ranks import connect
from tests.slow import exhaustive_except

METHODS = [DraftModel(rows=10), DraftModel(depth=3), DraftModel(depth=3, verify="rejection")]
STOPPING = Stopping(20, ignore_eos=True)
GREEDY = Sampling(temperature=0.0, seed=3)
SAMPLED = Sampling(temperature=0.9, top_p=0.95, repetition_penalty=1.1, seed=11, logprobs=2)
PROMPTS = [[7], [5, 9, 5, 9, 5], make_prompt(60)]
FIRST_LAYERS = SecondModel(layers=2)
SECOND = {"first layers": FIRST_LAYERS, "4 bits": SecondModel(weights=Weights.int4)}
Found = list[list[int]]


def make_engine(
    channel: Channel | None, axis: str, parts: Collectives | None, folder: str, second: SecondModel = FIRST_LAYERS
) -> Engine:
    settings, reader = ModelSettings(folder, device="cpu"), None
    if parts is not None:
        reader = read_sharded(parts) if axis == "tp" else read_stage(parts.rank, parts.num_ranks)
    checkpoint = load(settings, reader=reader, extensions=[SecondModelExtension("draft", second)])
    checkpoint.extensions["draft"].relative_costs = (0.2,) * 4  # ranks agree on it when they are assembled
    if channel is None:
        return Engine(checkpoint)
    if parts is None:
        runner = LookaheadParallel(SingleDevice(checkpoint.model, 16), channel)
    elif axis == "tp":
        runner = LookaheadParallel(TensorParallel(checkpoint.model, parts), channel, parts.num_ranks)
    else:
        runner = PipelineParallel(checkpoint.model, parts, channel)
    return Engine(checkpoint, runner, fingerprints=True)


def decode_all(engine: Engine) -> Found:
    """Each request alone, then all in the same steps."""
    cases = [(prompt, decode, one) for prompt in PROMPTS[1:] for decode in METHODS for one in (GREEDY, SAMPLED)]
    found = [
        engine.generate(prompt, decode=decode, sampling=sampling, stopping=STOPPING).token_ids
        for prompt, decode, sampling in cases
    ]
    mixed = [*cases[:6], (PROMPTS[0], METHODS[0], SAMPLED), (PROMPTS[0], Autoregressive(), GREEDY)]
    done = {f"{number}": Completion() for number in range(len(mixed))}
    for number, (prompt, decode, sampling) in enumerate(mixed):
        own = replace(sampling, seed=number)
        engine.add_request(engine.request_builder.build(prompt, decode, own, STOPPING, f"{number}"))
    while not engine.is_idle:
        for output in engine.step():
            done[output.request_id].extend(output)
    return [*found, *(completion.token_ids for completion in done.values())]


def by_lookahead_parallelism(mesh: Mesh, channel: Channel, folder: str, second: SecondModel) -> Found:
    return decode_all(make_engine(channel, "lp", None, folder, second))


def by_parts_of_a_model(mesh: Mesh, channel: Channel, folder: str, axis: str, second: SecondModel) -> Found:
    with closing(connect(mesh, axis)) as parts:
        return decode_all(make_engine(channel, axis, parts, folder, second))


@pytest.fixture(scope="module")
def expected_of(checkpoint_folder: Callable[[str], Path]) -> Callable[[str], Found]:
    """What one device yields, by the name of its second model."""
    return cache(
        lambda name: decode_all(make_engine(None, "single", None, str(checkpoint_folder("llama")), SECOND[name]))
    )


@pytest.mark.parametrize(
    ("name", "num_ranks"),
    exhaustive_except([(name, number) for name in SECOND for number in (2, 3, 4)], ("first layers", 2), ("4 bits", 3)),
)
def test_lookahead_parallelism(
    name: str, num_ranks: int, checkpoint_folder: Callable[[str], Path], expected_of: Callable[[str], Found]
) -> None:
    folder = str(checkpoint_folder("llama"))
    found = run_ranks(by_lookahead_parallelism, num_ranks, folder, SECOND[name], timeout_s=60)
    assert found == [expected_of(name)] * num_ranks


@pytest.mark.parametrize(
    ("name", "axis"),
    exhaustive_except(
        [(name, axis) for name in SECOND for axis in ("tp", "pp")], ("first layers", "tp"), ("4 bits", "pp")
    ),
)
def test_parts_of_a_model(
    name: str, axis: str, checkpoint_folder: Callable[[str], Path], expected_of: Callable[[str], Found]
) -> None:
    folder = str(checkpoint_folder("llama"))
    found = run_ranks(by_parts_of_a_model, 2, folder, axis, SECOND[name], timeout_s=60)
    assert found == [expected_of(name)] * 2


@pytest.mark.slow
@pytest.mark.parametrize("name", SECOND)
def test_what_is_expected_is_lossless(
    name: str, checkpoint_folder: Callable[[str], Path], expected_of: Callable[[str], Found]
) -> None:
    """All but rejection sampling gives the tokens of plain decoding."""
    engine = make_engine(None, "single", None, str(checkpoint_folder("llama")), SECOND[name])
    cases = [(prompt, decode, one) for prompt in PROMPTS[1:] for decode in METHODS for one in (GREEDY, SAMPLED)]
    for (prompt, decode, sampling), tokens in zip(cases, expected_of(name), strict=False):
        if decode.verify == "exact" or sampling is GREEDY:
            plain = engine.generate(prompt, decode=Autoregressive(), sampling=sampling, stopping=STOPPING)
            assert tokens == plain.token_ids
