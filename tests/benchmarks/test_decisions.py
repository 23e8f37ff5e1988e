"""Two records of the same code are equal, a planted difference is found, and frozen step times are what they say."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from benchmarks import decisions
from lp.step_cost import StepTimes

CHECKOUT = Path(__file__).parents[2]


def run(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    monkeypatch.setattr(sys, "argv", ["decisions", *map(str, arguments)])
    return decisions.main()


@pytest.mark.exhaustive
@pytest.mark.parametrize("part", ["lp1", "lp2"])
def test_two_records_are_equal_and_a_planted_difference_is_found(
    part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before, after = tmp_path / "before.json", tmp_path / "after.json"
    which = ("--quick", "--parts", part, "--methods", "lookahead,auto,beam", "--max-new-tokens", 6)
    for path in (before, after):
        assert run(monkeypatch, "record", path, "--checkout", CHECKOUT, "--cache", tmp_path / "cache", *which) == 0
    assert run(monkeypatch, "compare", before, after) == 0
    record = json.loads(after.read_text())
    key = f"{part} lookahead greedy prompt 0"
    assert sum(map(len, record["decisions"][key]["accepted"])) == 6
    record["decisions"][key]["tree_sizes"][1] += 1
    after.write_text(json.dumps(record))
    capsys.readouterr()
    assert run(monkeypatch, "compare", before, after) == 1
    assert f"{key}: tree_sizes[1]" in capsys.readouterr().out


def test_a_configuration_that_one_record_lacks_is_a_difference() -> None:
    common = {"model": "demo", "prompts": [], "max_new_tokens": 6}
    before = {**common, "decisions": {"a": {"text": "x"}, "b": {"text": "y"}}}
    assert not [*decisions.differing(before, before)]
    assert [*decisions.differing(before, {**common, "decisions": {"a": {"text": "x"}}})]


def test_frozen_step_times_differ_between_machines_by_a_power_of_two_alone(tmp_path: Path) -> None:
    for name, seconds in (("slow", (0.011, 0.3)), ("fast", (0.0021, 0.02))):
        measured = StepTimes((1, 64), seconds, 2, StepTimes((1, 64), seconds)).to_dict()
        (tmp_path / f"{name}.json").write_text(json.dumps(measured))
    frozen = decisions.freeze(tmp_path, is_resting=True)
    slow, fast = (StepTimes.from_dict(json.loads(frozen[f"{name}.json"])) for name in ("slow", "fast"))
    assert slow.alone and fast.alone
    assert slow.seconds == tuple(4 * value for value in fast.seconds)
    assert slow.alone.seconds == tuple(4 * value for value in fast.alone.seconds)
    assert slow.extras.host_row == 4 * fast.extras.host_row > 0
    assert fast.alone.at(1) < fast.at(1)
    assert decisions.freeze(tmp_path, is_resting=True) == frozen
