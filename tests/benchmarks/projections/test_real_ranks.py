"""Real ranks are measured, and one that fails does not stop the others."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.projections import real_ranks
from benchmarks.projections.projected_speed import ProjectionCase
from launch.data.workloads import WorkloadSettings
from launch.sweep.records import Point, Run, TextRecord
from launch.sweep.settings import BenchSettings
from lp import Lookahead
from lp.model.checkpoint import ModelSettings

DECODE = Lookahead(5, 4, 5)
LP = ProjectionCase("lp", 2, "lookahead")


@pytest.mark.exhaustive
def test_real_ranks_are_measured(checkpoint_folder: Callable[[str], Path], tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "def f(x):"}\n')
    settings = BenchSettings(
        model=ModelSettings(str(checkpoint_folder("llama")), device="cpu"),
        workload=WorkloadSettings(path=str(prompts), max_new_tokens=8),
        point_timeout_s=100,
    )
    measured, failures = real_ranks.measure_all([LP], {"lookahead": DECODE}, settings)
    assert not failures
    assert measured[LP] > 0
    assert real_ranks.room_for_ranks("cpu", 1) >= 1


def test_ranks_that_fail_are_told_and_the_others_go_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def measure(point: Point, *others: Any) -> Run:
        if point.mode == "tp":
            return Run(point.key, 0, "failed", error="rank 1 was lost")
        return Run(
            point.key,
            0,
            "done",
            texts=[TextRecord("0", 3, 30, 10, 0.1, 1.5, ""), TextRecord("1", 3, 30, 10, 0.1, 0.5, "")],
        )

    monkeypatch.setattr(real_ranks, "measure", measure)
    cases = [ProjectionCase("tp", 2, "lookahead"), LP]
    measured, failures = real_ranks.measure_all(cases, {"lookahead": DECODE}, BenchSettings())
    assert measured == {LP: 30.0}
    assert failures == ["tp on 2 real ranks, lookahead, failed: rank 1 was lost"]
    assert failures[0] in capsys.readouterr().err
