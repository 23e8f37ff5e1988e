"""A prompt that ranks with an emulated GPU each compute together has the keys and values that one of them computes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from lp.kv_cache.arena import PagedCache
from lp.model.compilation import CompileMode
from lp.model.gpu.cuda_graphs import CapturedForward
from lp.request import Sequence
from lp.runner.runner import StepInput
from lp.sampling.settings import Sampling
from lp.tree import NO_ROWS, chain
from parallel.comm.channel import Channel
from parallel.errors import RankLost
from parallel.mesh import Mesh
from parallel.runners.lookahead import LookaheadParallel
from tests.cuda_on_cpu.conftest import shorten_ladder
from tests.cuda_on_cpu.models import fill_cache, load_on_gpu
from tests.cuda_on_cpu.test_ranks import serving
from tests.parallel.ranks import run_ranks
from tests.parallel.runners.test_prefill_split import Recorded

Folders = dict[str, Path]
pytestmark = pytest.mark.usefixtures("cuda")  # which skips where it cannot be had
PROMPT = [(3 + 7 * i) % 41 + 2 for i in range(330)]
GREEDY = Sampling(temperature=0.0, seed=3)


@pytest.mark.parametrize("is_scattered", [False, True])
def test_a_layer_that_was_written_is_read_again(is_scattered: bool, folders: Folders) -> None:
    model = load_on_gpu(folders["llama"], CompileMode.off, "float32")
    source, target, beside = (model.make_cache() for _ in range(3))
    fill_cache(model, source, 300)
    if is_scattered:
        target.reserve(200)
        fill_cache(model, beside, 260)
    target.reserve(300)
    for layer in model.cache_shapes:
        target.write_layer(layer, 0, 120, source.read_layer(layer, 0, 120))
        target.write_layer(layer, 120, 300, source.read_layer(layer, 120, 300))
    target.length = 300
    assert torch.equal(target.export(0, 300).cpu(), source.export(0, 300).cpu())


def test_a_forward_without_a_graph_stops_before_each_attention(folders: Folders, few_rungs: None) -> None:
    model = load_on_gpu(folders["llama"])
    assert isinstance(model.fast, CapturedForward) and model.runs_by_layer
    cache, expected = model.make_cache(), model.make_cache()
    fill_cache(model, expected, 40)
    cache.reserve(40)
    seen: list[int] = []
    model.forward_by_layer(chain([(7 * n + 3) % 290 + 2 for n in range(40)]), cache, seen.append)
    cache.keep(range(40))
    assert seen == list(range(model.num_layers))
    assert torch.equal(cache.export(0, 40).cpu(), expected.export(0, 40).cpu())


def feed(mesh: Mesh, channel: Channel, folder: str) -> tuple[list[float], int, int]:
    """How far the keys and values of each chunk are from those that this rank computes alone; splits; messages."""
    with pytest.MonkeyPatch.context() as patch:
        shorten_ladder(patch)
        with serving(mesh, folder, "lp", dtype="bfloat16", compile=CompileMode.on) as rank:
            runner = rank.engine.runner
            assert isinstance(runner, LookaheadParallel) and runner.can_split
            runner.sharing = recorded = Recorded()
            together, alone = (Sequence(name, list(PROMPT), len(PROMPT), GREEDY) for name in ("together", "alone"))
            runner.open(together)
            runner.inner.open(alone)
            errors = []
            for num_computed in (90, 280, 329):
                runner.launch([StepInput(together, NO_ROWS, num_computed)])()
                runner.inner.launch([StepInput(alone, NO_ROWS, num_computed)])()
                one, other = (runner.inner.committed_cache(each) for each in (together, alone))
                assert isinstance(one, PagedCache) and 0 < one.length <= num_computed
                found, expected = (cache.export(0, one.length).cpu().float() for cache in (one, other))
                errors.append(float((found - expected).norm() / expected.norm()))
            return errors, len(recorded.splits), rank.network.asked["send"] + rank.network.asked["receive"]


@pytest.mark.slow
def test_two_gpus_compute_a_prompt_together(folders: Folders) -> None:
    for errors, num_splits, num_messages in run_ranks(feed, 2, str(folders["llama"])):
        assert max(errors) < 0.02 and num_splits == 3 and num_messages > 0


def lose_what_is_received(mesh: Mesh, channel: Channel, folder: str) -> int:
    """The tokens that are cached after what a rank received in a split turned out never to have come."""
    with pytest.MonkeyPatch.context() as patch:
        shorten_ladder(patch)
        with serving(mesh, folder, "lp", dtype="bfloat16", compile=CompileMode.on) as rank:
            runner = rank.engine.runner
            assert isinstance(runner, LookaheadParallel) and runner.copying is not None
            runner.sharing = Recorded()
            sequence = Sequence("together", list(PROMPT), len(PROMPT), GREEDY)
            runner.open(sequence)
            runner.launch([StepInput(sequence, NO_ROWS, 90)])()
            before = runner.inner.num_cached(sequence.id, sequence.tokens)

            def synchronize() -> None:
                raise RankLost("rank 1 is lost", (1,))

            patch.setattr(runner.copying.messages, "synchronize", synchronize)
            with pytest.raises(RankLost):
                runner.launch([StepInput(sequence, NO_ROWS, 280)])()
            return runner.inner.num_cached(sequence.id, sequence.tokens) - before


@pytest.mark.slow
def test_what_may_not_have_arrived_is_not_cached(folders: Folders) -> None:
    assert run_ranks(lose_what_is_received, 2, str(folders["llama"])) == [0, 0]
