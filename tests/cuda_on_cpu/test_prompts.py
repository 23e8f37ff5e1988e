"""Prompts by FlashAttention on the emulated GPU: the numbers, which function is used, the check at load, and texts."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from benchmarks.gpu.prompts import measure
from lp import Engine, Lookahead, Sampling
from lp.model import reference
from lp.model.compilation import CompileMode, make_fast
from lp.model.gpu import cuda_graphs, flash, prompts
from lp.model.gpu.cuda_graphs import CapturedForward
from lp.model.gpu.flash import Chains, FlashKernel
from lp.model.gpu.prompts import LayerKind, Problem, PromptAttention, PromptStep, describe, try_kernels
from lp.model.kernels import LayerAttention
from lp.runner.single_device import SingleDevice
from lp.tree import chain
from tests.cuda_on_cpu.models import load_on_gpu
from tests.cuda_on_cpu.test_packed import capture_once
from tests.lp.test_tree import random_tree
from tests.slow import slow_except

pytestmark = pytest.mark.usefixtures("few_prompts")
GPU, HALF = torch.device("cuda", 0), torch.bfloat16
THIRD, SECOND, TORCHS = flash.KERNELS
PLAIN, NEAR, CAPPED = (
    LayerKind(2, groups, 16, 16, how)
    for groups, how in ((2, LayerAttention(0.25)), (1, LayerAttention(0.3, 24)), (3, LayerAttention(0.25, 24, 5.0)))
)


@pytest.fixture
def few_prompts(few_rungs: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Short chains count as prompts, and functions are tried with few rows: kernels are interpreted row by row."""
    monkeypatch.setattr(prompts, "KERNELS", flash.KERNELS)
    for name, value in {
        "LEAST_ROWS": 8,
        "CHECKED": ((16, 20), (8, 0), (3, 5)),
        "TIMED": (8, 4),
        "CALLS": 1,
        "READINGS": 1,
    }.items():
        monkeypatch.setattr(prompts, name, value)
    monkeypatch.setattr(reference, "PROMPT_ROWS", 12)
    monkeypatch.setattr(cuda_graphs.CapturedForward.__init__, "__defaults__", ((1, 6), capture_once))


@pytest.mark.parametrize(
    ("kernel", "kind"),
    slow_except(
        [(one, kind) for one in flash.KERNELS for kind in (PLAIN, NEAR, CAPPED) if (one, kind) != (TORCHS, CAPPED)],
        (THIRD, CAPPED), (SECOND, CAPPED), (TORCHS, NEAR),
    ),
    ids=lambda one: getattr(one, "name", None) or one.describe(),
)  # fmt: skip
def test_chains_and_trees_of_a_step_get_what_our_own_kernel_computes(
    kernel: FlashKernel, kind: LayerKind, triton: None, flash_attn: Any, flash_attn_3: Any
) -> None:
    """Chains, a tree under a chain, which its root belongs to, a tree by itself, and a row, in pages out of order."""
    random = np.random.default_rng(1)
    trees = [
        chain([0] * 9),
        random_tree(random, 7).under([0] * 10),
        random_tree(random, 5),
        chain([0]),
        chain([0] * 12),
    ]
    problem = Problem.make(kind, HALF, GPU, list(zip(trees, (300, 0, 40, 3, 250), strict=True)))
    assert problem.prompts.rest is not None and len(problem.prompts.others) == 6 + 5 + 1
    found, expected = (numbers.float().cpu() for numbers in (problem.by(kernel), problem.by_own()))
    torch.testing.assert_close(found, expected, atol=0.05, rtol=0.05)


def test_a_trunk_ends_where_a_tree_branches() -> None:
    tree = random_tree(np.random.default_rng(3), 9)
    first = next(row for row, children in enumerate(tree.children) if len(children) > 1)
    assert tree.path(first) == list(range(first + 1)), "the rows before the first that has two children are a chain"
    assert tree.num_trunk == first + 1 and tree.under([5, 6]).num_trunk == first + 3
    assert chain([1, 2, 3]).num_trunk == 3 and chain([]).num_trunk == 0


def with_fault(change: Callable[..., Tensor]) -> FlashKernel:
    """Torch's function, changed. change: takes the function and its arguments."""
    return replace(TORCHS, name="faulty", attend=lambda *given: change(TORCHS.attend, *given))


def sees_one_key_more(attend: Any, *given: Any) -> Tensor:
    *others, scale, window, softcap = given
    return attend(*others, scale, window + 1, softcap)


def reads_pages_in_order(attend: Any, query: Tensor, keys: Tensor, values: Tensor, chains: Chains, *how: Any) -> Tensor:
    return attend(query, keys, values, chains._replace(table=chains.table.sort().values), *how)


def misses_the_last_key(attend: Any, query: Tensor, keys: Tensor, values: Tensor, chains: Chains, *how: Any) -> Tensor:
    return attend(query, keys, values, chains._replace(lengths=(chains.lengths - 1).clamp_min(0)), *how)


def is_no_number(attend: Any, *given: Any) -> Tensor:
    return attend(*given).fill_(torch.nan)


def is_for_another_gpu(attend: Any, *given: Any) -> Tensor:
    raise RuntimeError("no kernel image is available")


@pytest.mark.parametrize(
    "change", [sees_one_key_more, reads_pages_in_order, misses_the_last_key, is_no_number, is_for_another_gpu]
)
def test_a_function_that_is_wrong_is_refused(
    change: Any, triton: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(prompts, "CHECKED", ((16, 300), (8, 0), (3, 5)))  # two pages
    monkeypatch.setattr(prompts, "KERNELS", (with_fault(change),))
    with caplog.at_level(logging.WARNING, "lookahead"):
        attention = PromptAttention([NEAR.step()], HALF, GPU)
    (said,) = [one.message for one in caplog.records]
    assert "prompts are computed without faulty: it" in said
    assert ("no kernel image" if change is is_for_another_gpu else "other numbers than the Triton kernel") in said
    (trials,) = attention.trials.values()
    assert trials[0].is_broken and describe(trials) == "the Triton kernel"


def test_the_fastest_of_those_that_are_right_is_used(
    triton: None, flash_attn: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each kind of layer has its own. Our own kernel is timed first."""
    seconds = iter([0.003, 0.002, 0.001, 0.001, 0.002])
    monkeypatch.setattr(prompts, "measure_s", lambda run, device: next(seconds))
    near, capped = (try_kernels(kind, HALF, GPU) for kind in (NEAR, CAPPED))
    assert [one.obstacle for one in near] == ["not installed", "", "", ""]
    assert describe(near) == (
        "torch's FlashAttention (1.00 ms for 8 rows after 4 tokens; flash-attn 2.00 ms; the Triton kernel 3.00 ms)"
    )
    assert [one.obstacle for one in capped] == ["not installed", "", "it knows no softcap", ""]
    assert describe(capped).startswith("the Triton kernel (1.00 ms")


def test_the_benchmark_says_which_functions_ran(triton: None, flash_attn: Any) -> None:
    own, third, second, torchs = measure(CAPPED, HALF, GPU, 12, 30)
    assert own.ms and own.tera_per_s and own.function == "the Triton kernel" and second.ms and second.cached == 30
    assert (third.obstacle, torchs.obstacle) == ("not installed", "it knows no softcap")


def test_what_cannot_be_used_is_not_tried(triton: None, monkeypatch: pytest.MonkeyPatch) -> None:
    for kind, dtype, why in (
        (PLAIN, torch.float32, "float16 or"),
        (PLAIN._replace(head_dim=12, value_dim=12), HALF, "multiple of 8"),
    ):
        *tried, own = try_kernels(kind, dtype, GPU)
        assert why in tried[-1].obstacle and not any(one.is_broken for one in tried) and own.seconds is None
    without = FlashKernel("torch's", lambda: "that of torch 2.11 takes no block_table", False, is_no_number)
    monkeypatch.setattr(prompts, "KERNELS", (without,))
    assert try_kernels(PLAIN, HALF, GPU)[0].obstacle.endswith("takes no block_table")


@pytest.mark.parametrize("name", slow_except(["mistral", "llama"]))
def test_a_prompts_text_is_that_of_our_own_kernel(
    name: str, folders: dict[str, Path], triton: None, flash_attn: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last chunk of a prompt has the tree under it. Windows are passed on."""
    kernel, calls = SECOND, list[int]()

    def counted(query: Tensor, *others: Any) -> Tensor:
        calls.append(len(query))
        return kernel.attend(query, *others)

    monkeypatch.setattr(prompts, "KERNELS", (replace(kernel, attend=counted),))
    engine = Engine.from_pretrained(str(folders[name]), device="cuda", dtype="bfloat16", compile="on", step_times="off")
    fast: Any = engine.checkpoint.model.fast
    engine.runner.prefill_chunk = 16
    prompt = [(7 * place + 3) % 250 + 2 for place in range(45)]
    settings: Any = {"max_new_tokens": 5, "decode": Lookahead(2, 3, 2), "sampling": Sampling(0.0, seed=1)}
    calls.clear()
    found = engine.generate(prompt, **settings)
    num_layers = engine.checkpoint.model.num_layers
    assert calls[: 2 * num_layers] == [16] * 2 * num_layers, "44 tokens are more than two chunks"
    assert len(calls) == 3 * num_layers and calls[-1] > 12, "the others come with the first tree"
    calls.clear()
    fast._forward.prompts = None
    assert found.token_ids == engine.generate(prompt, **settings).token_ids and not calls


@pytest.mark.slow
def test_the_check_at_load_sees_a_prompt(
    folders: dict[str, Path], triton: None, two_rungs: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fault that no trial can see, as it lies in how a step's prompts are given to a function that is right."""
    attend = PromptStep.attend

    def faulty(self: PromptStep, *given: Any) -> Tensor | None:
        chains = self.prompts.chains
        changed = chains._replace(lengths=(chains.lengths - 3).clamp_min(0))
        return attend(replace(self, prompts=replace(self.prompts, chains=changed)), *given)

    monkeypatch.setattr(PromptStep, "attend", faulty)
    model = load_on_gpu(folders["mistral"], CompileMode.off)
    with pytest.raises(ValueError, match=r"compile=on: .* gives other logits than the model itself"):
        make_fast(model, CompileMode.on, None)


def test_prompts_come_in_larger_chunks_where_kernels_are_fused(folders: dict[str, Path], cuda: None) -> None:
    """Transformers' own attention has masks for all rows, for whose memory there is a bound."""
    fused = Engine.from_pretrained(
        str(folders["llama"]), device="cuda", dtype="bfloat16", compile="on", step_times="off"
    )
    assert isinstance(fused.checkpoint.model.fast, CapturedForward)
    assert fused.runner.prefill_chunk == fused.scheduler.rows.most == 2048
    eager = load_on_gpu(folders["llama"], CompileMode.off)
    assert SingleDevice(eager).prefill_chunk == 512 and SingleDevice(eager, prefill_chunk=64).prefill_chunk == 64
