"""Where ranks hold parts of a model, too, the rows of all sequences of a batch are one forward, and nothing differs."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest

from lp import Autoregressive, Engine, Sampling, Stopping
from lp.model.checkpoint import ModelSettings, load
from lp.model.compilation import CompileMode
from lp.scheduling.settings import SchedulerSettings
from parallel.build import share_steps
from parallel.comm.base import Collectives
from parallel.comm.channel import Channel
from parallel.comm.connect import connect_axis
from parallel.mesh import ExchangeKind, Mesh, ParallelSettings
from parallel.runners.pipeline import PipelineParallel
from parallel.runners.tensor import TensorParallel
from parallel.sharding.stages import read_stage
from parallel.sharding.tensor import read_sharded
from tests.mixture import Mixture, check_mixture, make_mixture, run_mixture
from tests.models import ARCHITECTURES
from tests.parallel.ranks import run_ranks
from tests.slow import exhaustive_except

SPLIT = sorted(ARCHITECTURES)
FEW = ["gemma2", "llama"]
# Biases, experts, and experts with biases and sinks.
OTHERS = ["gpt2", "gpt_oss", "qwen3_moe"]
NUM_TOKENS = 9


def connect(mesh: Mesh, axis: str) -> Collectives:
    settings = ParallelSettings(exchange=ExchangeKind("shm"), timeout_s=60)
    return connect_axis(settings, replace(mesh, axes={axis: mesh.num_ranks}), axis)


def make_engine(
    channel: Channel, axis: str, parts: Collectives, folder: str, mode: CompileMode = CompileMode.off
) -> Engine:
    """An engine whose steps have few rows, so that prompts come in chunks."""
    reader = read_sharded(parts) if axis == "tp" else read_stage(parts.rank, parts.num_ranks)
    checkpoint = load(ModelSettings(folder, device="cpu", compile=mode), reader=reader, group=parts)
    if axis == "pp":
        runner = PipelineParallel(checkpoint.model, parts, channel, prefill_chunk=64)
    else:
        alone = TensorParallel(checkpoint.model, parts, prefill_chunk=64)
        runner = share_steps(alone, channel, ranks_per_replica=parts.num_ranks)
    return Engine(checkpoint, runner, fingerprints=True, scheduler=SchedulerSettings(max_step_rows=48))


def serve(mesh: Mesh, channel: Channel, axis: str, folders: list[str], mode: CompileMode) -> list[Mixture]:
    with closing(connect(mesh, axis)) as parts:  # no stage may exit before its last answers arrive
        engines = [make_engine(channel, axis, parts, folder, mode) for folder in folders]
        return [run_mixture(engine, make_mixture(engine, 12, seed)) for seed, engine in enumerate(engines)]


@pytest.mark.parametrize(
    ("axis", "names", "num_ranks", "mode"),
    exhaustive_except(
        [
            (axis, names, num_ranks, mode)
            for axis in ("tp", "pp")
            for names, num_ranks in ((FEW, 2), (OTHERS, 2), (["llama"], 3), (SPLIT, 2))
            for mode in (CompileMode.on, CompileMode.off)
        ],
        ("tp", FEW, 2, CompileMode.on),
        ("tp", OTHERS, 2, CompileMode.off),
        ("pp", OTHERS, 2, CompileMode.off),
        ("tp", ["llama"], 3, CompileMode.off),
        ("pp", ["llama"], 3, CompileMode.on),
        ("pp", FEW, 2, CompileMode.on),
    ),
)
def test_a_mixture_yields_what_each_request_yields_alone(
    axis: str, names: list[str], num_ranks: int, mode: CompileMode, checkpoint_folder: Callable[[str], Path]
) -> None:
    folders = [str(checkpoint_folder(name)) for name in names]
    first, *others = run_ranks(serve, num_ranks, axis, folders, mode, limit_s=400)
    for folder, mixture, *same in zip(folders, first, *others, strict=True):
        assert all((one.tokens, one.ends) == (mixture.tokens, mixture.ends) for one in same)
        check_mixture(mixture, Engine.from_pretrained(folder, device="cpu"))


class Sent(NamedTuple):
    """What serving some requests took. messages: collectives and messages that this rank began. steps: batches."""

    messages: int
    steps: int


def count(mesh: Mesh, channel: Channel, axis: str, folder: str, numbers: list[int]) -> list[Sent]:
    """Counts for each number of requests, which have the same length."""
    parts = connect(mesh, axis)
    engine = make_engine(channel, axis, parts, folder)
    found = []
    for number in numbers:
        messages, steps = parts.traffic.num_collectives, channel.num_steps
        stopping = Stopping(NUM_TOKENS, ignore_eos=True)
        for name in range(number):
            prompt, greedy = [5, 9, name + 2], Sampling(temperature=0.0, seed=3)
            engine.add_request(engine.request_builder.build(prompt, Autoregressive(), greedy, stopping, str(name)))
        while not engine.is_idle:
            engine.step()
        found.append(Sent(parts.traffic.num_collectives - messages, channel.num_steps - steps))
    return found


def test_tensor_parallelism_adds_up_once_for_all_sequences(checkpoint_folder: Callable[[str], Path]) -> None:
    """Two all-reduces in each of three layers, one for the embedding, one all-gather of logits."""
    for found in run_ranks(count, 2, "tp", str(checkpoint_folder("llama")), [1, 6]):
        assert found == [Sent(8 * NUM_TOKENS, NUM_TOKENS)] * 2


def test_stages_of_a_pipeline_send_one_message_for_all_sequences(checkpoint_folder: Callable[[str], Path]) -> None:
    """Two batches are under way, with half of the sequences each, as soon as there are two."""
    for found in run_ranks(count, 2, "pp", str(checkpoint_folder("llama")), [1, 2, 8]):
        assert found == [Sent(NUM_TOKENS, NUM_TOKENS), *[Sent(2 * NUM_TOKENS, 2 * NUM_TOKENS)] * 2]
