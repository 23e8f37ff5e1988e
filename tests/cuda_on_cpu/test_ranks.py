"""Two ranks, each with an emulated GPU: tp launches its collectives in graphs, pp its messages, and nobody waits."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.distributed import PrefixStore

from lp import Autoregressive, Engine, Lookahead, Sampling
from lp.engine.builder import EngineSettings
from lp.model.checkpoint import ModelSettings
from lp.model.compilation import CompileMode
from lp.model.gpu import cuda_graphs
from lp.model.gpu.cuda_graphs import CapturedForward
from lp.model.gpu.forward import FusedForward
from lp.runner.step_times.measure import StepTimesSource
from parallel.build import MeshTopology
from parallel.comm.channel import Channel
from parallel.mesh import ExchangeKind, Mesh, ParallelSettings, open_store
from tests.cuda_on_cpu import cuda_api, device_guard, nccl, triton_kernels
from tests.cuda_on_cpu.conftest import shorten_prompts
from tests.cuda_on_cpu.gpu import MakesGpuTensors
from tests.cuda_on_cpu.launches import Launches, observed
from tests.cuda_on_cpu.models import ROUNDING, error_of_graphs, fill_cache
from tests.lp.test_tree import random_tree
from tests.models import generate_greedily, load_reference
from tests.parallel.ranks import run_ranks
from tests.slow import slow_except

Folders = dict[str, Path]
pytestmark = pytest.mark.usefixtures("cuda")  # which skips where it cannot be had
PROMPT = [(3 + 7 * i) % 41 + 2 for i in range(40)]
NEW_TOKENS = 6


@dataclass
class Rank:
    """One rank of a run on emulated GPUs. log: what it said at start."""

    engine: Engine
    place: MeshTopology
    network: nccl.Network
    log: list[str]

    def texts(self) -> list[list[int]]:
        return [
            self.engine.generate(
                PROMPT, max_new_tokens=NEW_TOKENS, decode=decode, sampling=Sampling(0.0, seed=3)
            ).token_ids
            for decode in (Autoregressive(), Lookahead(3, 3, 3))
        ]


@contextmanager
def serving(
    mesh: Mesh, folder: str, axis: str, has_peers: bool = False, has_triton: bool = False, **model: Any
) -> Iterator[Rank]:
    """This rank with an emulated GPU, in its own process."""
    logged: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: logged.append(record.getMessage())
    logger = logging.getLogger("lookahead")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    with pytest.MonkeyPatch.context() as patch:
        device_guard.install()
        cuda_api.install(patch)
        if has_triton:
            triton_kernels.install(patch)
        shorten_prompts(patch)
        patch.setenv("HF_DEACTIVATE_ASYNC_LOAD", "1")
        network = nccl.install(patch, has_peers)
        placed = Mesh({axis: 2}, mesh.rank, 2, mesh.rank, 2, torch.device("cuda", mesh.rank))
        settings = ParallelSettings(exchange=ExchangeKind.auto, timeout_s=30)
        store = PrefixStore("place", open_store(mesh, 30))  # apart from that of the channel that all tests have
        with MakesGpuTensors(), closing(MeshTopology(settings, placed, store)) as place:
            engine_settings = EngineSettings(ModelSettings(folder, device=f"cuda:{mesh.rank}", **model))
            engine_settings.step_times = StepTimesSource.off
            engine_settings.attention.prefill_chunk = 32
            yield Rank(Engine.assemble(engine_settings, place), place, network, logged)


def in_float32(mesh: Mesh, channel: Channel, folder: str, axis: str) -> list[list[int]]:
    with serving(mesh, folder, axis, dtype="float32", compile=CompileMode.off) as rank:
        return rank.texts()


@pytest.mark.parametrize("axis", slow_except(["tp", "pp"], "tp"))
def test_float32_text_is_that_of_generate(axis: str, folders: Folders) -> None:
    expected = generate_greedily(load_reference(folders["llama"]), PROMPT, NEW_TOKENS)
    for texts in run_ranks(in_float32, 2, str(folders["llama"]), axis):
        assert texts == [expected] * 2


@dataclass
class StepCounts:
    """What a rank saw. asked, done: collectives of one step that Python asked for, and that were done."""

    error: float
    texts: list[list[int]]
    asked: dict[str, int]
    done: dict[str, int]
    traffic: int
    log: list[str]
    has_graphs: bool


def with_graphs(mesh: Mesh, channel: Channel, folder: str, has_peers: bool) -> StepCounts:
    with serving(mesh, folder, "tp", has_peers, dtype="bfloat16", compile=CompileMode.on) as rank:
        model = rank.engine.checkpoint.model
        cache = model.make_cache(1)
        fill_cache(model, cache, 20)
        error = max(error_of_graphs(model, cache, num_rows) for num_rows in (1, 5, 8))
        tree = random_tree(np.random.default_rng(0), 5)
        model.forward(tree, cache, 5)
        asked, done = rank.network.asked.copy(), rank.network.done.copy()
        before = rank.place.replica.traffic.num_collectives
        with rank.place.replica.deferred():
            model.forward(tree, cache, 5)
        counts = dict(rank.network.asked - asked), dict(rank.network.done - done)
        traffic = rank.place.replica.traffic.num_collectives - before
        return StepCounts(error, rank.texts(), *counts, traffic, rank.log, model.fast is not None)


@pytest.mark.slow
@pytest.mark.parametrize("has_peers", [False, True])
def test_a_tp_rank_replays_one_graph(has_peers: bool, folders: Folders) -> None:
    """Two all-reduces for each of three layers, one for the embedding, and the logits are gathered."""
    for found in run_ranks(with_graphs, 2, str(folders["llama"]), has_peers):
        assert found.has_graphs and found.error < ROUNDING
        assert found.asked == {}, "the host asks for no collective when a graph is replayed"
        by = "one_shot" if has_peers else "all_reduce"
        assert found.done == {by: 7, "all_gather": 1} and found.traffic == 8
        way = "; small sums in graphs by symmetric memory" if has_peers else " (no symmetric memory: the GPUs cannot"
        assert len([line for line in found.log if "tp: NCCL, launched without waiting" in line and way in line]) == 1


def fused(mesh: Mesh, channel: Channel, folder: str) -> tuple[float, list[list[int]], dict[str, int], int, bool]:
    """As with_graphs, with Triton: the error of logits, texts, the collectives and the kernels of one replayed step."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cuda_graphs.CapturedForward.__init__, "__defaults__", ((1, 8), cuda_graphs.capture_on_gpu))
        with serving(mesh, folder, "tp", has_triton=True, dtype="float32", compile=CompileMode.on) as rank:
            model = rank.engine.checkpoint.model
            is_fused = isinstance(model.fast, CapturedForward) and isinstance(model.fast._forward, FusedForward)
            cache = model.make_cache(1)
            fill_cache(model, cache, 20)
            error = error_of_graphs(model, cache, 5)
            kernels = cuda_api.CUDAGraph.last.num_kernels
            done = rank.network.done.copy()
            model.forward(random_tree(np.random.default_rng(0), 5), cache, 5)
            counts = dict(rank.network.done - done)
            return error, rank.texts(), counts, kernels, is_fused


@pytest.mark.slow
def test_a_tp_rank_runs_fused_kernels(folders: Folders) -> None:
    expected = generate_greedily(load_reference(folders["llama"]), PROMPT, NEW_TOKENS)
    for error, texts, done, kernels, is_fused in run_ranks(fused, 2, str(folders["llama"])):
        assert is_fused and error < 1e-4
        assert texts == [expected] * 2
        assert done == {"all_reduce": 7, "all_gather": 1}
        assert kernels <= 3 * 10 + 6, kernels


def fused_stage(mesh: Mesh, channel: Channel, folder: str) -> tuple[list[list[int]], int, bool]:
    """Returns texts, the kernels of the last captured graph, and whether the stage has graphs of fused kernels."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cuda_graphs.CapturedForward.__init__, "__defaults__", ((1, 8), cuda_graphs.capture_on_gpu))
        with serving(mesh, folder, "pp", has_triton=True, dtype="float32", compile=CompileMode.on) as rank:
            model = rank.engine.checkpoint.model
            is_fused = isinstance(model.fast, CapturedForward) and isinstance(model.fast._forward, FusedForward)
            return rank.texts(), cuda_api.CUDAGraph.last.num_kernels, is_fused


@pytest.mark.slow
def test_stages_of_a_pipeline_run_fused_kernels(folders: Folders) -> None:
    """Prompts run without a graph, as they have more rows than the ladder."""
    expected = generate_greedily(load_reference(folders["llama"]), PROMPT, NEW_TOKENS)
    for texts, kernels, is_fused in run_ranks(fused_stage, 2, str(folders["llama"])):
        assert is_fused and texts == [expected] * 2
        assert kernels <= 2 * 10 + 4, kernels


def one_cannot_capture(mesh: Mesh, channel: Channel, folder: str) -> tuple[bool, list[str], list[list[int]]]:
    def fail(*_: Any, **__: Any) -> None:
        raise torch.cuda.OutOfMemoryError("CUDA out of memory")

    with pytest.MonkeyPatch.context() as patch:
        real = cuda_api.graph
        patch.setattr(cuda_api, "graph", fail if mesh.rank == 1 else real)
        with serving(mesh, folder, "tp", dtype="bfloat16") as rank:
            return rank.engine.checkpoint.model.fast is None, rank.log, rank.texts()


@pytest.mark.slow
def test_if_one_rank_cannot_capture_none_does(folders: Folders) -> None:
    (alone, other) = run_ranks(one_cannot_capture, 2, str(folders["llama"]))
    assert alone[0] and other[0] and alone[2] == other[2]
    assert any("another of the ranks that share the model cannot capture it" in line for line in alone[1])
    assert any("CUDA out of memory" in line for line in other[1])


def waits_of_stages(mesh: Mesh, channel: Channel, folder: str) -> list[tuple[int, int]]:
    """Returns, for each step, the copies to the host and the waits while it was started."""
    with serving(mesh, folder, "pp", dtype="float32") as rank:
        found: list[tuple[int, int]] = []
        start = rank.engine.runner.start

        def observe(steps: Any) -> None:
            with observed(Launches()) as counted:
                start(steps)
            found.append((counted.to_host, counted.waits))

        rank.engine.runner.start = observe  # pyright: ignore[reportAttributeAccessIssue]
        rank.texts()
        return found


@pytest.mark.slow
def test_a_stage_starts_a_step_without_waiting(folders: Folders) -> None:
    first, last = run_ranks(waits_of_stages, 2, str(folders["llama"]))
    assert len(first) > NEW_TOKENS and set(first) == {(0, 0)}
    assert all(copies for copies, _ in last), "the last stage reads the answers"


def on_one_gpu(mesh: Mesh, channel: Channel, folder: str) -> str:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nccl, "uuid_of", lambda device: "GPU-0")
        try:
            with serving(mesh, folder, "tp"):
                return ""
        except ValueError as error:
            return str(error)


def test_two_ranks_on_one_gpu_are_told_what_to_do(folders: Folders) -> None:
    for message in run_ranks(on_one_gpu, 2, str(folders["llama"])):
        assert message.startswith("ranks 0 and 1 are on the same GPU, and NCCL wants one for each rank: start one rank")
        assert message.endswith("with parallel.exchange=gloo")
