"""The projection of drafting ahead plays real ranks: texts are those of plain decoding, and its clock is a table."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from benchmarks import ahead_projection
from benchmarks.ahead_projection import (
    AUTO,
    SELF,
    Machine,
    ahead_name,
    decode_by,
    decode_plainly,
    describe,
    load_with_copy,
)
from benchmarks.projections.clocked_steps import ClockedStep, ClockedTotals
from benchmarks.projections.ideal_drafts import (
    BEFORE,
    FREE,
    MEANWHILE,
    NOWHERE,
    ChainTimes,
    covering,
    ideals,
    replay,
    right_by_depth,
)
from benchmarks.shared.categories import ALL, CategoryPrompt
from lp.model.quantization.quantize import Weights
from lp.step_cost import StepTimes
from tests.benchmarks.results import read

ONE, THREE = ahead_name(1, 1), ahead_name(1, 3)
ASKED = [CategoryPrompt("code", "def add(first, second):\n    return first + second\n\n\nclass Point:\n", None)]


def test_played_ranks_draft_for_other_ends(checkpoint_folder: Callable[[str], Path]) -> None:
    checkpoint = load_with_copy(str(checkpoint_folder("llama")), "float32", Weights.int8)
    texts = decode_plainly(checkpoint, ASKED, 40)
    curve = StepTimes((1, 8, 64, 256), (0.010, 0.0105, 0.015, 0.03))
    machine = Machine("device", "int8", {1: curve}, {1: (0.003, 0.0031, 0.0032, 0.0035)}, 25e-6)
    found = {name: decode_by(machine, name, checkpoint, texts, 32) for name in (AUTO, SELF, "lp=2", ONE, THREE)}
    assert [one.same_text for one in found.values()] == [1] * len(found)
    totals = {name: one.totals[ALL] for name, one in found.items()}
    assert {one.tokens for one in totals.values()} == {39}
    assert found[AUTO].covered == found["lp=2"].covered == 0 < found[ONE].covered and found[THREE].covered > 0
    assert totals[AUTO].drafting == totals[SELF].drafting == 0 < totals[ONE].drafting <= 1 < totals[THREE].drafting
    assert totals[SELF].seconds > totals[ONE].seconds and totals[ONE].steps >= totals[THREE].steps
    assert totals[THREE].seconds >= 0.010025 * totals[THREE].steps
    table = describe(machine, texts, found)
    assert "## PROJECTED: device, copy in int8" in table and f"| {THREE}" in table


def test_a_step_takes_as_long_as_its_slowest_rank() -> None:
    assert ClockedStep(1, 2.0, 0.5, before_s=3.0).seconds == 5.0
    assert ClockedStep(1, 2.0, 0.5, ahead_s=[1.0, 1.25]).seconds == 2.0
    waits = ClockedStep(3, 2.0, 0.5, ahead_s=[0.0, 4.0])
    first = ClockedStep(0, 9.0, 0.5)
    assert ClockedTotals.of([(6, [first, ClockedStep(2, 2.0, 0.5, ahead_s=[1.0, 1.0]), waits])]) == ClockedTotals(
        tokens=4, steps=2, seconds=6.5, waiting=2.5 / 6.5, drafting=1.5
    )


@pytest.mark.parametrize(
    ("places", "covered", "waits", "steps"),
    [
        ([0, 0, 0, 0, 0, 0], 1, True, 2.0),  # both steps have two drafts and yield a third token
        ([0, 0, 0, 0, 0, 0], 1, False, 3.0),  # the first step has no drafts
        ([0, 1, 0, 0, 1, 0], 2, True, 3.0),
        ([0, 1, 0, 0, 1, 0], 1, False, 5.0),  # second choices are not covered: plain steps follow
        ([NOWHERE] * 3, NOWHERE, False, 3.0),
    ],
)
def test_chains_end_at_the_first_wrong_draft(places: Sequence[int], covered: int, waits: bool, steps: float) -> None:
    assert replay([places], 2, covered, 1.0, 1.0, waits) == pytest.approx(steps / len(places))


def test_what_limits_chains() -> None:
    texts = [[0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0]]
    found = ideals(texts, ChainTimes([1.0] * 9, 0.3))
    by_speed = [found[name].token_s for name in (FREE, MEANWHILE, covering(2, waits=True), BEFORE)]
    assert by_speed == sorted(by_speed) and by_speed[0] < by_speed[-1] < 1.0
    assert found[covering(3)].token_s <= found[covering(2)].token_s <= found[covering(1)].token_s
    assert right_by_depth([[0, 0, 1]], 3) == [pytest.approx(2 / 3), 0.5, 0.0]


@pytest.mark.slow
def test_every_table_of_the_command_says_projected(
    prompts_folder: Path, checkpoint_folder: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "results"
    options = ["--prompts", str(prompts_folder), "--model", str(checkpoint_folder("llama")), "--limit", "2"]
    monkeypatch.setattr(sys, "argv", ["benchmark", *options, "--max-new-tokens", "8", "--output", str(output)])
    ahead_projection.main()
    table, data = read(output, "ahead_projection-*")
    assert all("PROJECTED" in line for line in table.splitlines() if line.startswith("#"))
    assert "drafts as of a small model's in int4" in table and len(data["machines"]) == 3
