"""How long decode=auto itself takes is measured on made-up answers."""

from __future__ import annotations

import pytest

from lp.methods.auto import host_time
from lp.methods.auto.host_time import measure_host
from lp.methods.auto.method import Auto


def test_the_host_needs_time_for_a_step_and_for_each_row() -> None:
    step_s, row_s = measure_host(Auto())
    assert 0 <= step_s < 0.1 and 0 < row_s < 0.01


def test_trees_of_both_sizes_are_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    rows: list[int] = []
    answers = host_time._answers
    monkeypatch.setattr(
        host_time, "_answers", lambda followers, tree, at: (rows.append(len(tree)), answers(followers, tree, at))[1]
    )
    measure_host(Auto(candidates=4))
    steps = host_time.FIRST_STEPS + host_time.STEPS
    assert len(rows) == 3 * steps and set(rows[:steps]) == {1}
    assert max(rows[steps : 2 * steps]) == host_time.FEW and max(rows[2 * steps :]) > 0.7 * host_time.MANY


@pytest.mark.parametrize("settings", [Auto(max_rows=1), Auto(False, False, False), Auto(max_window=0, candidates=1)])
def test_any_settings_can_be_measured(settings: Auto) -> None:
    assert min(measure_host(settings)) >= 0
