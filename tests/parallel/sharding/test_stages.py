"""Stages of a pipeline in one process: run one after another, they give the whole model's logits to the bit."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import AutoConfig

from benchmarks.families.checkpoints import save_family
from lp import Engine
from lp.kv_cache.contiguous import ContiguousCache
from lp.model.causal import CausalModel
from lp.model.checkpoint import ModelSettings, load
from lp.model.current_step import current_step
from lp.model.exactness import UnsupportedArchitecture, check_tree
from lp.model.fast_forward import SequenceRows
from lp.model.memory import num_weight_bytes
from lp.model.quantization.model import empty_model
from lp.tree import TreeBuilder
from parallel.sharding.stages import EarlierLayer, cut_stage, read_stage, share_out
from tests.models import save_checkpoint
from tests.slow import slow_except


def load_stages(folder: Path, num_stages: int, dtype: str = "float32") -> list[CausalModel]:
    settings = ModelSettings(str(folder), dtype, device="cpu")
    return [load(settings, reader=read_stage(index, num_stages)).model for index in range(num_stages)]


def branching_tree():
    builder = TreeBuilder(5)
    left, right = builder.add(9, 0), builder.add(30, 0)
    builder.add(31, left)
    builder.add(7, right)
    return builder.build()


@pytest.mark.parametrize(
    ("architecture", "num_stages"),
    slow_except(
        [
            ("llama", 3),
            ("qwen3", 4),
            ("mistral", 2),
            ("gemma2", 2),
            ("phi3", 2),
            ("olmo2", 3),
            ("granite", 2),
            ("cohere", 2),
            ("gpt2", 2),
            ("gpt_neox", 2),
            ("mixtral", 2),
            ("qwen3_moe", 3),
            ("gpt_oss", 3),
        ],
        ("llama", 3),
        ("qwen3", 4),
        ("gemma2", 2),
        ("gpt2", 2),
    ),
)
def test_stages_in_a_row_give_the_whole_models_logits(architecture: str, num_stages: int, tmp_path: Path) -> None:
    found, expected = logits_of_both(save_checkpoint(tmp_path, architecture, num_hidden_layers=4), num_stages)
    assert torch.equal(found, expected)


def logits_of_both(folder: Path, num_stages: int) -> tuple[Tensor, Tensor]:
    """The logits of a tree by the stages of a model of four layers, and by the whole model."""
    whole = Engine.from_pretrained(str(folder), device="cpu").checkpoint.model
    stages = load_stages(folder, num_stages)
    assert sorted(layer for stage in stages for layer in stage.layers) == [0, 1, 2, 3]
    tree = branching_tree()
    hidden, logits = None, torch.empty(0)
    for stage in stages:
        logits, step = stage.forward_eager([SequenceRows(tree, stage.make_cache(len(tree)), len(tree))], hidden)
        hidden = step.outgoing
    return logits, whole.forward(tree, whole.make_cache(len(tree)), len(tree))


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ["gemma4_moe", "deepseek_v3"])
def test_layers_of_several_kinds_in_stages(architecture: str, tmp_path: Path) -> None:
    """Weights lie at other addresses than in the whole model, so that some products are rounded otherwise."""
    found, expected = logits_of_both(save_checkpoint(tmp_path, architecture, num_hidden_layers=4), 2)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_stages_of_a_model_that_reads_images_as_well(tmp_path: Path) -> None:
    found, expected = logits_of_both(save_family("gemma3", tmp_path), 2)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("tied", [False, True])
def test_a_stage_holds_only_its_own_weights(tied: bool, tmp_path: Path) -> None:
    folder = save_checkpoint(tmp_path, "llama", num_hidden_layers=4, tie_word_embeddings=tied)
    whole = Engine.from_pretrained(str(folder), device="cpu").checkpoint.model
    stages = load_stages(folder, 4)
    held = [set(dict(stage.model.named_parameters())) for stage in stages]
    everything = set(dict(whole.model.named_parameters())) | ({"lm_head.weight"} if tied else set())
    assert set.union(*held) == everything and sum(map(len, held)) == len(everything)
    embedding = num_weight_bytes(whole.model.get_input_embeddings())
    num_bytes = [num_weight_bytes(stage.model) for stage in stages]
    assert sum(num_bytes) == num_weight_bytes(whole.model) + tied * embedding
    for stage in stages[1:3]:  # in the middle stages, neither work nor memory grows with the vocabulary
        logits = stage.forward(branching_tree(), stage.make_cache(5), 1)
        assert logits.shape == (1, stage.model.config.hidden_size)
        assert all(len(tensor) != stage.vocab_size for tensor in stage.model.buffers())


def test_each_stage_is_checked_by_itself(tmp_path: Path) -> None:
    """Wrong attention is noticed in every stage."""
    folder = save_checkpoint(tmp_path, "llama", num_hidden_layers=4)
    for dtype in ("float32", "bfloat16"):
        for stage in load_stages(folder, 2, dtype):
            layer = stage.model.get_submodule(f"model.layers.{stage.layers[0]}.self_attn")
            layer.register_forward_pre_hook(_see_everything)
            with pytest.raises(UnsupportedArchitecture, match="other logits"):
                check_tree(stage)


def _see_everything(module: torch.nn.Module, args: tuple) -> None:
    if step := current_step():
        for rows in step.parts:
            rows.visibility = torch.ones_like(rows.visibility)


def test_layers_are_divided_evenly() -> None:
    def counts(*args, **kwargs) -> list[int]:
        return [len(run) for run in share_out(*args, **kwargs)]

    assert share_out([1, 1, 1, 1], 2) == [range(2), range(2, 4)]
    assert counts([10] * 4, 1, last=5) == [4]
    assert counts([10] * 16, 4) == [4, 4, 4, 4]
    assert counts([61] * 16, 4, last=131) == [4, 5, 5, 2]
    assert counts([10] * 8, 3, last=60) == [3, 4, 1]
    assert counts([10] * 3, 3, last=1000) == [1, 1, 1]
    assert counts([1, 1, 1, 9], 2) == [3, 1]
    assert counts([1, 1, 1, 1], 2, needed=[0, 1]) == [1, 3]
    assert counts([1, 1, 1, 1], 2, needed=[2, 3]) == [3, 1]
    assert counts([1] * 8, 3, last=1, needed=[1, 5, 7]) == [3, 3, 2]


@pytest.mark.parametrize(
    ("architecture", "num_stages", "message"),
    [
        ("llama", 4, r"parallel.pp=4 is more than the 3 layers of LlamaForCausalLM: use parallel.pp=3 or less"),
        ("opt", 2, r"OPTForCausalLM has no pipeline-parallel plan; use parallel=lp"),
        ("xglm", 2, r"XGLMForCausalLM calls .* not with several ranks: use parallel=single"),
    ],
)
def test_a_model_that_cannot_be_split_is_refused(
    architecture: str, num_stages: int, message: str, tmp_path: Path
) -> None:
    folder = str(save_checkpoint(tmp_path, architecture))
    with pytest.raises(ValueError, match=message):
        load(ModelSettings(folder, device="cpu"), reader=read_stage(0, num_stages))


def test_weights_that_the_plan_leaves_out_are_refused() -> None:
    config = AutoConfig.for_model("llama", hidden_size=32, num_hidden_layers=2)
    model = empty_model(config, torch.float32)
    model.register_module("extra", torch.nn.Linear(2, 2))
    with pytest.raises(UnsupportedArchitecture, match=r"leaves out extra.weight, extra.bias\); use parallel=lp"):
        cut_stage(model, 0, 2)


def test_layers_keep_their_indices(tmp_path: Path) -> None:
    """Models choose by a layer's index: its type, its mask and its place in the cache."""
    last = load_stages(save_checkpoint(tmp_path, "gemma2"), 2)[1]
    layers = last.model.get_submodule("model.layers")
    assert [isinstance(layer, EarlierLayer) for layer in layers.children()] == [True, True, False, False]
    cache = last.make_cache(5)
    last.forward(branching_tree(), cache, 1)
    assert isinstance(cache, ContiguousCache) and sorted(cache.keys) == last.layers == [2, 3]
