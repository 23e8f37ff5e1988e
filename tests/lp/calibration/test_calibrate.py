"""Where the step times of a run come from: the disk, a measurement, or nowhere."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from lp import Engine
from lp.cache_files import VARIABLE
from lp.calibration import calibrate
from lp.calibration.calibrate import settle_step_times
from lp.calibration.measure import StepTimesSource
from lp.step_cost import StepTimes


class Settled:
    """Settles the step times of an engine in a cache of its own, with measurements that are made up and counted."""

    def __init__(self, engine: Engine, root: Path):
        self.engine = engine
        self.root = root
        self.num_measured = 0
        self.still_hold = True

    def measure(self, *arguments: Any) -> StepTimes:
        self.num_measured += 1
        return StepTimes((1, 8), (0.001, 0.001 + self.num_measured / 1000))

    def settle(self, source: str = "auto", most_rows: int = 8, mode: Any = "single") -> StepTimes | None:
        return settle_step_times(
            StepTimesSource(source), self.engine.checkpoint.model, self.engine.runner, most_rows, mode
        )

    @property
    def file(self) -> Path:
        (path,) = (self.root / "step-times").iterdir()
        return path


@pytest.fixture
def settled(llama: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settled:
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    made = Settled(llama, tmp_path)
    monkeypatch.setattr(calibrate, "measure_step_times", made.measure)
    monkeypatch.setattr(calibrate, "still_holds", lambda *_: made.still_hold)
    return made


def test_they_are_measured_once(settled: Settled, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "lookahead")
    first = settled.settle()
    assert (settled.settle(), settled.num_measured) == (first, 1)
    assert settled.file.name.startswith("LlamaForCausalLM-float32-")
    assert caplog.text.count("measuring the time of a step") == 1
    assert caplog.text.count("1: 1.00, 8: 2.00") == 1


def test_measured_anew_if_asked_and_kept(settled: Settled) -> None:
    settled.settle()
    anew = settled.settle("measure")
    assert settled.num_measured == 2 and anew is not None and anew.seconds[-1] == 0.003
    assert settled.settle() == anew


def test_figures_that_hold_no_more_are_replaced(settled: Settled) -> None:
    first = settled.settle()
    settled.still_hold = False
    anew = settled.settle()
    settled.still_hold = True
    assert settled.num_measured == 2 and anew != first
    assert settled.settle() == anew


def test_off_is_none_and_leaves_no_trace(settled: Settled) -> None:
    assert settled.settle("off") is None
    assert (settled.num_measured, list(settled.root.iterdir())) == (0, [])


@pytest.mark.parametrize("change", [{"most_rows": 9}, {"mode": [{"lp": 2}, 2, "auto", 0.0]}])
def test_what_matters_has_figures_of_its_own(change: dict[str, Any], settled: Settled) -> None:
    settled.settle()
    settled.settle(**change)
    assert settled.num_measured == 2
    assert len(list((settled.root / "step-times").iterdir())) == 2


def test_another_machine_or_model_has_figures_of_its_own(settled: Settled, monkeypatch: pytest.MonkeyPatch) -> None:
    settled.settle()
    monkeypatch.setattr(calibrate, "device_name", lambda device: "another processor")
    settled.settle()
    monkeypatch.setattr(settled.engine.checkpoint.model.model.config, "rope_theta", 1234.5, raising=False)
    settled.settle()
    assert settled.num_measured == 3


@pytest.mark.parametrize("content", ["", "{", "[1, 2]", '{"rows": [1], "seconds": [-1]}', json.dumps({"a": "b"})])
def test_a_corrupt_or_foreign_file_is_ignored_and_replaced(
    content: str, settled: Settled, caplog: pytest.LogCaptureFixture
) -> None:
    first = settled.settle()
    settled.file.write_text(content)
    second = settled.settle()
    assert caplog.text.count("is ignored") == 1
    assert settled.num_measured == 2 and second != first
    assert StepTimes.from_dict(json.loads(settled.file.read_text())) == second


def test_without_a_place_to_keep_them_they_are_measured_each_time(
    settled: Settled, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(VARIABLE, "/dev/null/inside")
    assert settled.settle() != settled.settle()
    assert settled.num_measured == 2
    assert "nothing is kept for later runs" in caplog.text
