"""Step times come from the disk or a measurement, or there are none."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lp import Engine
from lp.platform.disk_cache import VARIABLE
from lp.runner.step_times import calibrate
from lp.runner.step_times.calibrate import StepTimesFile, resolve_step_times
from lp.runner.step_times.measure import StepTimesSource
from lp.step_cost import StepTimes


class Resolved:
    """Resolves an engine's step times in a cache folder of its own, by measurements that are made up and counted."""

    def __init__(self, engine: Engine, root: Path):
        self.engine = engine
        self.root = root
        self.num_measured = 0

    def measure(self, *arguments: Any) -> StepTimes:
        self.num_measured += 1
        return StepTimes((1, 8), (0.001, 0.001 + self.num_measured / 1000))

    def resolve(self, source: str = "auto", most_rows: int = 8, mode: Any = "single") -> StepTimes | None:
        return resolve_step_times(
            StepTimesSource(source), self.engine.checkpoint.model, self.engine.runner, most_rows, mode
        )

    @property
    def file(self) -> Path:
        (path,) = (self.root / "step-times").iterdir()
        return path


@pytest.fixture
def resolved(llama: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Resolved:
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    made = Resolved(llama, tmp_path)
    monkeypatch.setattr(calibrate, "measure_step_times", made.measure)
    return made


def test_step_times_are_measured_once(resolved: Resolved, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "lookahead")
    first = resolved.resolve()
    assert (resolved.resolve(), resolved.num_measured) == (first, 1)
    assert resolved.file.name.startswith("LlamaForCausalLM-float32-")
    assert caplog.text.count("by a few steps: 1: 1.00, 8: 2.00") == 1


def test_step_times_are_measured_anew_on_request_and_kept(resolved: Resolved) -> None:
    resolved.resolve()
    anew = resolved.resolve("measure")
    assert resolved.num_measured == 2 and anew is not None and anew.seconds[-1] == 0.003
    assert resolved.resolve() == anew


def test_extras_are_measured_with_the_curve_and_kept(resolved: Resolved) -> None:
    engine = resolved.engine
    arguments = engine.checkpoint.model, engine.runner, 8
    times = resolve_step_times(StepTimesSource.auto, *arguments, measure_host=lambda: (0.25, 0.125))
    assert times is not None and (times.extras.host_step, times.extras.host_row) == (0.25, 0.125)
    assert times.extras.sampled_plain != 0
    assert resolve_step_times(StepTimesSource.auto, *arguments) == times


def test_what_was_learnt_is_kept_now_and_then(resolved: Resolved) -> None:
    model = resolved.engine.checkpoint.model
    first = resolved.resolve()
    assert first is not None
    file = StepTimesFile(model, 8, "single")
    for num_steps in (100, 200):
        file.keep(replace(first, num_steps=num_steps))
    kept = resolved.resolve()
    assert kept is not None and kept.num_steps == 100, "the second one came a moment later"
    assert resolved.num_measured == 1


def test_off_measures_and_writes_nothing(resolved: Resolved) -> None:
    assert resolved.resolve("off") is None
    assert (resolved.num_measured, list(resolved.root.iterdir())) == (0, [])


@pytest.mark.parametrize("change", [{"most_rows": 9}, {"mode": [{"lp": 2}, 2, "auto", 0.0]}])
def test_other_sizes_and_modes_have_figures_of_their_own(change: dict[str, Any], resolved: Resolved) -> None:
    resolved.resolve()
    resolved.resolve(**change)
    assert resolved.num_measured == 2
    assert len(list((resolved.root / "step-times").iterdir())) == 2


def test_another_machine_or_model_has_figures_of_its_own(resolved: Resolved, monkeypatch: pytest.MonkeyPatch) -> None:
    resolved.resolve()
    monkeypatch.setattr(calibrate, "device_name", lambda device: "another processor")
    resolved.resolve()
    monkeypatch.setattr(resolved.engine.checkpoint.model.model.config, "rope_theta", 1234.5, raising=False)
    resolved.resolve()
    assert resolved.num_measured == 3


@pytest.mark.parametrize("content", ["", "{", "[1, 2]", '{"rows": [1], "seconds": [-1]}', json.dumps({"a": "b"})])
def test_a_corrupt_or_foreign_file_is_ignored_and_replaced(
    content: str, resolved: Resolved, caplog: pytest.LogCaptureFixture
) -> None:
    first = resolved.resolve()
    resolved.file.write_text(content)
    second = resolved.resolve()
    assert caplog.text.count("is ignored") == 1
    assert resolved.num_measured == 2 and second != first
    assert StepTimes.from_dict(json.loads(resolved.file.read_text())) == second


def test_without_a_folder_step_times_are_measured_each_time(
    resolved: Resolved, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(VARIABLE, "/dev/null/inside")
    assert resolved.resolve() != resolved.resolve()
    assert resolved.num_measured == 2
    assert "nothing is kept for later runs" in caplog.text
