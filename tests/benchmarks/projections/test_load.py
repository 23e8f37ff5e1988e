"""The projection of many streams says of every speed that it is projected, and refuses what it cannot project."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.projections import load as load_projection
from benchmarks.projections.streams.speeds_report import SYSTEMS
from lp.step_cost import Extras, StepTimes
from tests.benchmarks.results import read, read_plot


@pytest.mark.slow
def test_every_speed_says_projected(
    prompts_folder: Path, checkpoint_folder: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    curve = StepTimes((1, 64), (0.01, 0.05), extras=Extras(sequence=1e-4))
    monkeypatch.setattr(load_projection, "measured_times", lambda engine: curve)
    output = tmp_path / "results"
    options = ["--prompts", str(prompts_folder), "--model", str(checkpoint_folder("llama")), "--dtype", "float32"]
    options += ["--limit", "4", "--max-new-tokens", "16", "--ranks", "2", "--streams", "1,3", "--output", str(output)]
    monkeypatch.setattr(sys, "argv", ["benchmark", *options])
    load_projection.main()
    table, data = read(output, "load_projection-*")
    titles = [line for line in table.splitlines() if line.startswith("#")]
    assert all("PROJECTED" in line for line in titles if "Curves" not in line)
    assert sum("tokens/s of all streams" in line for line in titles) == 2
    assert "PROJECTED. No 2 ranks have run any of this" in table and "nccl/issues/1259" in table
    assert read_plot(output, "load_projection-*").count("PROJECTED") == 2
    assert set(data["projected_tokens_per_s"]) == {"here", "H100 SXM, NVLink"}
    for by_streams in data["projected_tokens_per_s"].values():
        assert set(by_streams) == {"1", "3"}
        for speeds in by_streams.values():
            assert set(speeds) == set(SYSTEMS) and all(speed > 0 for speed in speeds.values())
    assert data["machines"][0]["one"]["seconds"] == [0.01, 0.05]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--machines", "here,tpu"], "--machines tpu: there are here, a100, h100, rtx-4090"),
        (["--ranks", "3"], "figures of GPUs are known for 2, 4, 8"),
        (["--ranks", "1", "--machines", "here"], "--ranks must be at least 2"),
        (["--gb-per-s", "0"], "--gb-per-s must be positive"),
    ],
    ids=lambda value: value[1] if isinstance(value, list) else "",
)
def test_what_cannot_be_projected_is_refused(
    options: list[str], message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["benchmark", "--model", "demo/python-11m", *options])
    with pytest.raises(SystemExit):
        load_projection.main()
    assert message in capsys.readouterr().err
