"""Models that cannot answer token trees decode token by token, with the tokens of transformers' greedy `generate`."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel

from benchmarks.families.checkpoints import save_family
from lp import Auto, Autoregressive, Beam, BestOf, Engine, Lookahead, PromptLookup, Sampling, Stopping
from lp.kv_cache.cache import PAGE
from lp.model.checkpoint import Invariance, ModelSettings, load
from lp.model.compilation import CompileMode
from lp.model.errors import CheckpointError
from lp.model.exactness import UnsupportedArchitecture
from lp.model.fast_forward import SequenceRows
from lp.model.plain import PlainCache, PlainModel
from lp.scheduling.kv_budget import KVBudget
from lp.tree import chain
from tests.models import generate_greedily, load_reference, save_checkpoint
from tests.slow import slow_except

PROMPTS = [[(3 + n + 7 * i) % 41 + 2 for i in range(length)] for n, length in enumerate((1, 5, 60))]
NUM_TOKENS = 24
# Attention that transformers' interface does not reach, and a recurrent state, which cannot go back.
FAMILIES = ["xglm", "mamba", "rwkv"]
GREEDY = Sampling(temperature=0.0, seed=0)


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    made: dict[str, Path] = {}

    def folder(family: str) -> Path:
        if family not in made:
            made[family] = save_family(family, tmp_path_factory.mktemp(family))
        return made[family]

    return folder


def engine_of(folder: Path, **settings: str) -> Engine:
    return Engine.from_pretrained(str(folder), device="cpu", step_times="off", **settings)  # type: ignore[arg-type]


def run(engine: Engine, prompts: list[list[int]]) -> list[list[int]]:
    """The tokens of requests that are served side by side."""
    stopping = Stopping(NUM_TOKENS, ignore_eos=True)
    for number, prompt in enumerate(prompts):
        engine.add_request(engine.request_builder.build(prompt, None, GREEDY, stopping, request_id=str(number)))
    found: dict[str, list[int]] = {str(number): [] for number in range(len(prompts))}
    while not engine.is_idle:
        for output in engine.step():
            found[output.request_id] += output.tokens
    return [*found.values()]


def expected(reference: PreTrainedModel) -> list[list[int]]:
    return [generate_greedily(reference, prompt, NUM_TOKENS) for prompt in PROMPTS]


@pytest.mark.parametrize("family", slow_except(FAMILIES, "xglm", "mamba"))
def test_every_method_gives_the_tokens_of_generate(
    family: str, folder_of: Callable[[str], Path], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "lookahead"):
        engine = engine_of(folder_of(family))
    [said] = [message for message in caplog.messages if "every step gives one token" in message]
    assert engine.checkpoint.plain in said and "\n" not in said
    texts = expected(load_reference(folder_of(family)))
    for method in (Autoregressive(), PromptLookup(), Lookahead(3, 4, 3), Auto(rows=12)):
        for prompt, text in zip(PROMPTS, texts, strict=True):
            stopping = Stopping(NUM_TOKENS, ignore_eos=True)
            completion = engine.generate(prompt, decode=method, sampling=GREEDY, stopping=stopping)
            assert completion.token_ids == text, method
            assert completion.stats.tokens_per_step == 1
    assert run(engine, PROMPTS) == texts


@pytest.mark.parametrize("family", slow_except(FAMILIES, "mamba"))
def test_prefixes_are_reused_and_evicted(family: str, folder_of: Callable[[str], Path]) -> None:
    engine = engine_of(folder_of(family), prefix_reuse="all")
    memory = engine.checkpoint.model.memory
    memory.limit(2)
    engine.scheduler.budget = KVBudget(2)
    texts = expected(load_reference(folder_of(family)))
    for _ in range(2):
        assert run(engine, PROMPTS) == texts
        assert memory.num_used <= 2


@pytest.mark.parametrize("family", slow_except(FAMILIES, "mamba"))
def test_a_cache_that_goes_back_or_is_copied_is_computed_again(family: str, folder_of: Callable[[str], Path]) -> None:
    model = load(ModelSettings(str(folder_of(family)), device="cpu")).model
    assert isinstance(model, PlainModel)
    prompt = PROMPTS[2]

    def logits(cache: PlainCache, tokens: list[int]) -> torch.Tensor:
        return model.forward_many([SequenceRows(chain(tokens), cache, 1)])

    whole = logits(model.make_cache(), prompt)  # type: ignore[arg-type]
    cache = model.make_cache()
    assert isinstance(cache, PlainCache)
    logits(cache, prompt[:30])
    cache.keep(range(20))  # ten rows were not accepted
    copies = cache.fork(), cache.fork(10)
    assert [one.length for one in copies] == [20, 10]
    for one in (cache, *copies):
        torch.testing.assert_close(logits(one, prompt[one.length :]), whole, rtol=1e-4, atol=1e-4)
    cache.length = 7
    torch.testing.assert_close(logits(cache, prompt[7:]), whole, rtol=1e-4, atol=1e-4)
    cache.evict()
    assert cache.take_eviction() and cache.num_bytes == 0 and cache.num_pages == 0


def test_samples_of_one_prompt_are_those_of_single_requests(folder_of: Callable[[str], Path]) -> None:
    engine = engine_of(folder_of("mamba"), prefix_reuse="all")
    sampling, stopping = Sampling(temperature=0.8, seed=3), Stopping(8, ignore_eos=True)
    best = engine.generate(PROMPTS[2], decode=BestOf(num_samples=3), sampling=sampling, stopping=stopping)
    alone = [
        engine.generate(PROMPTS[2], sampling=sampling.another(number), stopping=stopping).token_ids
        for number in range(3)
    ]
    assert best.token_ids in alone


def test_what_needs_trees_is_refused_with_the_reason(folder_of: Callable[[str], Path]) -> None:
    engine = engine_of(folder_of("mamba"))
    with pytest.raises(ValueError, match=r"decode=beam needs token trees, and MambaForCausalLM .*; use decode="):
        engine.generate(PROMPTS[0], decode=Beam(), stopping=Stopping(4))
    for settings, remedy in (
        ({"compile": CompileMode.on}, "model.compile=on: use model.compile=auto"),
        ({"invariant": Invariance.on}, "model.invariant=on: use model.invariant=auto"),
    ):
        with pytest.raises(UnsupportedArchitecture, match=remedy):
            load(ModelSettings(str(folder_of("mamba")), device="cpu", **settings))  # type: ignore[arg-type]


@pytest.mark.parametrize(("family", "reason"), [("xglm", "in 0 of its 2 layers"), ("rwkv", "has no attention heads")])
def test_several_ranks_refuse_it_before_weights_are_read(family: str, reason: str, tmp_path: Path) -> None:
    folder = save_family(family, tmp_path)
    (folder / "model.safetensors").write_bytes(b"no weights")
    with pytest.raises(UnsupportedArchitecture, match=rf"{reason}.*, but not with several ranks: use parallel=single"):
        load(ModelSettings(str(folder), device="cpu"), is_alone=False)


def test_a_prompt_longer_than_a_page_is_counted(folder_of: Callable[[str], Path]) -> None:
    model = load(ModelSettings(str(folder_of("mamba")), device="cpu")).model
    cache = model.make_cache()
    model.forward_many([SequenceRows(chain(PROMPTS[2] * 5), cache, 1)])
    assert cache.num_pages == 60 * 5 // PAGE + 1 == model.memory.num_used


def test_a_weight_that_is_not_a_number_is_named(tmp_path: Path) -> None:
    folder = save_checkpoint(tmp_path)
    file = folder / "model.safetensors"
    weights = load_file(file)
    weights["model.layers.1.mlp.up_proj.weight"][3, 4] = float("nan")
    save_file(weights, file, metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match=r"hold NaN in model\.layers\.1\.mlp\.up_proj\.weight"):
        load(ModelSettings(str(folder), device="cpu"))
