"""Keys and values that one arena on an emulated GPU gets from another are those that it would have computed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from lp.kv_cache.arena import PagedCache
from lp.model.compilation import CompileMode
from parallel.comm.channel import Channel
from parallel.comm.process_group import ProcessGroupCollectives
from parallel.mesh import Mesh
from parallel.runners.lookahead import LookaheadParallel
from tests.cuda_on_cpu.models import fill_cache, load_on_gpu
from tests.cuda_on_cpu.test_ranks import NEW_TOKENS, PROMPT, serving
from tests.lp.test_tree import random_tree
from tests.models import generate_greedily, load_reference
from tests.parallel.ranks import run_ranks
from tests.parallel.runners.test_copying_on_ranks import InTurn

Folders = dict[str, Path]
pytestmark = pytest.mark.usefixtures("cuda")  # which skips where it cannot be had


def test_a_sequence_that_was_appended_answers_like_the_one_that_was_computed(
    folders: Folders,
) -> None:
    model = load_on_gpu(folders["llama"], CompileMode.off, "float32")
    source, target, beside = (model.make_cache() for _ in range(3))
    fill_cache(model, source, 300)
    target.append(source.export(0, 100), model.cache_shapes)
    fill_cache(model, beside, 260)  # takes pages between those of the other
    target.append(source.export(100, 300), model.cache_shapes)
    assert isinstance(target, PagedCache) and target.length == 300
    tree = random_tree(np.random.default_rng(0), 7)
    found, expected = (model.forward(tree, cache, 7).cpu() for cache in (target, source))
    assert torch.equal(found, expected)


@pytest.mark.slow
def test_a_graph_reads_what_was_appended(folders: Folders, few_rungs: None) -> None:
    model = load_on_gpu(folders["llama"])
    source, target = model.make_cache(), model.make_cache()
    fill_cache(model, source, 40)
    target.append(source.export(0, 40), model.cache_shapes)
    tree = random_tree(np.random.default_rng(0), 7)
    found, expected = (model.forward(tree, cache, 7).cpu() for cache in (target, source))
    assert model.fast is not None and torch.equal(found, expected)


def take_turns(mesh: Mesh, channel: Channel, folder: str) -> tuple[list[list[int]], int, bool]:
    """Texts whose ranks take turns at each step, the tokens that were copied here, and whether by NCCL."""
    with serving(mesh, folder, "lp", dtype="float32", compile=CompileMode.off) as rank:
        runner = rank.engine.runner
        assert isinstance(runner, LookaheadParallel) and runner.copying is not None
        runner.sharing = InTurn()
        by_nccl = isinstance(runner.copying.messages, ProcessGroupCollectives) and sum(rank.network.asked.values()) > 0
        return rank.texts(), runner.copying.num_tokens, by_nccl


@pytest.mark.slow
def test_ranks_with_a_gpu_each_copy_by_nccl(folders: Folders) -> None:
    expected = generate_greedily(load_reference(folders["llama"]), PROMPT, NEW_TOKENS)
    for texts, num_copied, by_nccl in run_ranks(take_turns, 2, str(folders["llama"])):
        assert texts == [expected] * 2 and num_copied > 0 and by_nccl
