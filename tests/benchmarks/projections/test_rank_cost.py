"""The computed costs equal what a model of the same configuration holds, computes and sends."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, LlamaConfig

from benchmarks.projections.measured_cost import check_cost
from benchmarks.projections.rank_cost import cost_of, full_tree
from parallel.comm.rows import HEADER
from parallel.runners.partition import partition
from tests.models import save_checkpoint
from tests.slow import exhaustive_except

TREE = full_tree(5, 4, 3)
CONTEXT = 40
MODES = [{}, {"lp": 2}, {"tp": 2}, {"pp": 2}, {"lp": 2, "tp": 2}]


def test_a_full_tree_has_a_row_for_each_cell_and_each_draft_token() -> None:
    assert len(TREE) == 1 + 5 * 3 + 3 * 3
    assert len(full_tree(1, 2, 1)) == 3


@pytest.mark.parametrize(
    ("architecture", "degrees"),
    exhaustive_except(
        [(name, degrees) for name in ("llama", "qwen3", "gemma2", "starcoder2") for degrees in MODES],
        ("llama", {"lp": 2}), ("qwen3", {"lp": 2, "tp": 2}), ("starcoder2", {"tp": 2}), ("starcoder2", {"pp": 2}),
        quick=[("gemma2", degrees) for degrees in MODES],
    ),
    ids=str,
)  # fmt: skip
def test_computed_is_measured(
    architecture: str, degrees: dict[str, int], checkpoint_folder: Callable[[str], Path]
) -> None:
    path = str(checkpoint_folder(architecture))
    cost = cost_of(AutoConfig.from_pretrained(path), torch.float32, degrees, TREE, CONTEXT)
    checks = check_cost(path, "float32", degrees, cost, TREE, CONTEXT)
    assert len(checks) == (1 if "pp" in degrees else 5 if "tp" in degrees else 3)
    for one in checks:
        assert one.computed == one.measured, one


@pytest.mark.parametrize(
    ("architecture", "degrees"),
    exhaustive_except(
        [(name, degrees) for name in ("llama", "phi3") for degrees in ({"tp": 2}, {"tp": 4})],
        quick=[("llama", {"tp": 4}), ("phi3", {"tp": 2})],
    ),
    ids=str,
)
def test_the_rank_with_the_highest_cost_counts(architecture: str, degrees: dict[str, int], tmp_path: Path) -> None:
    """Heads, columns and tokens do not divide, so that ranks differ."""
    sizes = {"num_attention_heads": 6, "num_key_value_heads": 3, "hidden_size": 48, "intermediate_size": 70}
    path = str(save_checkpoint(tmp_path, architecture, seed=0, chat_template=None, **sizes, vocab_size=299))
    cost = cost_of(AutoConfig.from_pretrained(path), torch.float32, degrees, TREE, CONTEXT)
    for one in check_cost(path, "float32", degrees, cost, TREE, CONTEXT):
        assert one.computed == one.measured, one


@pytest.mark.parametrize(
    ("architecture", "degrees"),
    exhaustive_except(
        [(name, degrees) for name in ("gpt2", "mixtral") for degrees in ({}, {"tp": 2})],
        quick=[("gpt2", {}), ("mixtral", {"tp": 2})],
    ),
    ids=str,
)
def test_experts_and_packed_projections_are_counted(architecture: str, degrees: dict[str, int], tmp_path: Path) -> None:
    path = str(save_checkpoint(tmp_path, architecture, num_key_value_heads=4))
    cost = cost_of(AutoConfig.from_pretrained(path), torch.float32, degrees, TREE, CONTEXT)
    for one in check_cost(path, "float32", degrees, cost, TREE, CONTEXT):
        assert one.computed == one.measured, one


def test_tied_embeddings_are_held_once_but_by_both_ends_of_a_pipeline(tmp_path: Path) -> None:
    path = str(save_checkpoint(tmp_path, "llama", tie_word_embeddings=True))
    for degrees in MODES:
        cost = cost_of(AutoConfig.from_pretrained(path), torch.float32, degrees, TREE, CONTEXT)
        assert all(one.computed == one.measured for one in check_cost(path, "float32", degrees, cost, TREE, CONTEXT))


def test_a_model_too_large_for_this_machine_is_only_counted() -> None:
    config = LlamaConfig(
        vocab_size=128_256,
        hidden_size=8192,
        intermediate_size=28_672,
        num_hidden_layers=80,
        num_attention_heads=64,
        num_key_value_heads=8,
    )
    single = cost_of(config, torch.bfloat16, {}, TREE, 4096)
    assert single.weight_bytes == pytest.approx(141.1e9, rel=0.001)
    assert single.cache_bytes == 2 * 80 * 8 * 128 * 2 * 4096
    split = cost_of(config, torch.bfloat16, {"tp": 8}, TREE, 4096)
    assert split.weight_bytes == pytest.approx(single.weight_bytes / 8, rel=0.001)
    assert split.collectives == 2 * 80 + 3


def test_lookahead_parallelism_splits_rows_and_sends_answers() -> None:
    config = LlamaConfig(num_hidden_layers=2)
    costs = [cost_of(config, torch.float32, {"lp": degree}, TREE, CONTEXT) for degree in (1, 2, 4)]
    assert [cost.rows for cost in costs] == [max(map(len, partition(TREE, degree))) for degree in (1, 2, 4)]
    assert [cost.collectives for cost in costs] == [0, 1, 1]
    assert [cost.bytes_sent for cost in costs[1:]] == [4 * (HEADER + cost.rows) for cost in costs[1:]]
    assert costs[0].flops > costs[1].flops > costs[2].flops
    assert len({cost.weight_bytes for cost in costs}) == 1


@pytest.mark.parametrize("degrees", [{"pp": 2, "tp": 2}, {"tp": 33}, {"pp": 9}], ids=str)
def test_degrees_that_cannot_be_are_refused(degrees: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=r"parallel\."):
        cost_of(LlamaConfig(num_hidden_layers=2), torch.float32, degrees, TREE, CONTEXT)
