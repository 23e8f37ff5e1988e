"""A model that drafts with its own weights in 4 bits: on one rank the copy has no keys and values of its own."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from lp import Auto, Autoregressive, DraftModel, Engine, Sampling, SecondModel
from lp.methods.draft_model import rounds
from lp.model import second_model
from lp.model.checkpoint import ModelSettings, load
from lp.model.quantization.parameter import QuantizedParameter
from lp.model.quantization.quantize import Weights
from lp.model.second_model import SecondModelExtension
from lp.runner.single_device import SingleDevice
from lp.tree import TokenTree
from tests.lp.methods.draft_model.test_draft_model import GREEDY, SAMPLED, run_all, tokens_of
from tests.lp.test_lossless import make_prompt

EngineOf = Callable[[str], Engine]
FolderOf = Callable[[str], Path]
PROMPT = make_prompt(90)


def second_of(engine: Engine):
    return engine.checkpoint.extensions["draft"].model


def trees_of(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> list[TokenTree]:
    """The trees that the copy runs from now on."""
    second, trees = second_of(engine), list[TokenTree]()
    real = second.forward_many
    monkeypatch.setattr(
        second, "forward_many", lambda given: (trees.extend(rows.tree for rows in given), real(given))[1]
    )
    return trees


def test_the_copy_is_quantised_and_has_no_memory_of_its_own(drafting: EngineOf) -> None:
    checkpoint = drafting("4 bits").checkpoint
    second = checkpoint.extensions["draft"].model
    assert any(isinstance(weight, QuantizedParameter) for weight in second.model.parameters())
    assert not any(isinstance(weight, QuantizedParameter) for weight in checkpoint.model.model.parameters())
    assert second.memory is checkpoint.model.memory and checkpoint.models == [checkpoint.model]


def test_a_copy_that_does_not_fit_is_left_out(
    checkpoint_folder: FolderOf, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(second_model, "free_memory", lambda device: 1000)
    folder, draft = str(checkpoint_folder("llama")), SecondModel(weights=Weights.int4)
    engine = Engine.from_pretrained(folder, device="cpu", step_times="off", draft=draft)
    assert "draft.weights=int4: the copy takes" in caplog.text and "the model runs without it" in caplog.text
    assert not engine.checkpoint.extensions
    assert tokens_of(engine, PROMPT, Auto(), GREEDY).text == tokens_of(engine, PROMPT, Autoregressive(), GREEDY).text
    with pytest.raises(ValueError, match="draft"):
        tokens_of(engine, PROMPT, DraftModel(), GREEDY)


def test_it_reads_no_text(drafting: EngineOf, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(drafting("4 bits").checkpoint)
    trees = trees_of(engine, monkeypatch)
    stats = tokens_of(engine, PROMPT, DraftModel(rows=8), GREEDY).stats
    assert stats.accepted["draft_model"] > 5, "tiny random models are right often enough"
    assert trees and max(map(len, trees)) <= 16


def test_its_drafts_are_better_than_those_of_a_copy_with_its_own_cache(
    drafting: EngineOf, checkpoint_folder: FolderOf
) -> None:
    """It reads exact keys and values. The difference is small, so it must not be worse by much."""
    folder = str(checkpoint_folder("llama"))
    apart = SecondModelExtension("draft", SecondModel(weights=Weights.int4), holds_all=False)
    of_its_own = Engine(load(ModelSettings(folder, device="cpu"), extensions=[apart]))
    assert second_of(of_its_own).memory is not of_its_own.checkpoint.model.memory
    steps = [
        tokens_of(engine, PROMPT, DraftModel(rows=8), GREEDY).stats.steps
        for engine in (Engine(drafting("4 bits").checkpoint), of_its_own)
    ]
    assert steps[0] <= steps[1] + 2


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED[1]], ids=["greedy", "sampled"])
def test_many_requests_in_little_memory(
    sampling: Sampling, drafting: EngineOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sequences are evicted, and preempted, while others draft."""
    checkpoint = drafting("4 bits").checkpoint
    engine = Engine(checkpoint)
    prompts = [make_prompt(length, seed=length) for length in (60, 250, 33, 251, 249)]
    decodes = [DraftModel(), DraftModel(rows=8), Auto(rows=12), Auto(), DraftModel(depth=3, verify="rejection")]
    expected = [
        tokens_of(engine, prompt, Autoregressive(), replace(sampling, seed=number)).token_ids
        for number, prompt in enumerate(prompts)
    ]
    monkeypatch.setattr(checkpoint.model.memory, "num_pages", 4)
    found = run_all(Engine(checkpoint), prompts, sampling, decodes)
    num_exact = len(prompts) if sampling is GREEDY else len(prompts) - 1  # rejection sampling gives another text
    assert found[:num_exact] == expected[:num_exact]


def test_an_eviction_while_others_draft(drafting: EngineOf, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sequence that has drafted gives its memory to another one before its own step: its text is computed again."""
    checkpoint = drafting("4 bits").checkpoint
    runner = SingleDevice(checkpoint.model)
    engine = Engine(checkpoint, runner)
    expected = tokens_of(engine, PROMPT, Autoregressive(), GREEDY).token_ids
    evicted, real = list[int](), rounds._one_round

    def evict_after(asked) -> None:
        real(asked)
        if len(evicted) < 3 and not any(wish.growth.choose() for wish, _ in asked):
            for state in runner.states.values():
                evicted.append(state.cache.length)
                state.cache.evict()

    monkeypatch.setattr(rounds, "_one_round", evict_after)
    assert tokens_of(engine, PROMPT, DraftModel(rows=8), GREEDY).token_ids == expected
    assert len(evicted) == 3


def test_a_prompt_that_is_reused(drafting: EngineOf) -> None:
    """A cache that begins as a copy of another one's drafts alike."""
    engine = Engine.from_pretrained(
        drafting("4 bits").checkpoint.path, device="cpu", step_times="off", prefix_reuse="all",
        draft=SecondModel(weights=Weights.int4),
    )  # fmt: skip
    first = tokens_of(engine, PROMPT, DraftModel(rows=8), GREEDY)
    again = tokens_of(engine, PROMPT, DraftModel(rows=8), GREEDY)
    assert again.token_ids == first.token_ids and again.stats.accepted["draft_model"] > 5


def test_a_quantised_checkpoint_is_refused(checkpoint_folder: FolderOf, tmp_path: Path) -> None:
    folder = tmp_path / "quantised"
    shutil.copytree(checkpoint_folder("llama"), folder)
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=r"draft\.weights=int4: the checkpoint is quantised already \(gptq\); use"):
        Engine.from_pretrained(str(folder), device="cpu", draft=SecondModel(weights=Weights.int4))
