"""The benchmark of step times on a GPU: it measures with graphs and without, and splits a forward into its parts."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from benchmarks import step_time
from benchmarks.shared.shapes import make_config
from tests.benchmarks.results import read

pytestmark = [pytest.mark.gpu, pytest.mark.real_gpu]


def test_graphs_and_eager_forwards_are_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = make_config({"hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 4,
                         "num_attention_heads": 8, "num_key_value_heads": 2})  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config.to_dict()))
    arguments = ["--config", str(tmp_path / "config.json"), "--dtype", "bfloat16", "--device", "cuda", "--ranks", "1",
                 "--attention", "varlen", "--rows", "1,64", "--cached", "300", "--limit", "1"]  # fmt: skip
    monkeypatch.setattr(sys, "argv", ["step_time", *arguments, "--output", str(tmp_path / "results")])
    step_time.main()
    table, figures = read(tmp_path / "results", "step_time-config-bfloat16-cuda")
    assert {point["way"] for point in figures["points"]} == {"varlen, eager", "varlen, graphs"}
    assert not any("left out" in note for note in figures["notes"]) and "gpu:" in table
    for one in figures["splits"]:  # a part alone may take longer than it does inside of a graph
        assert 0 < one["attention"] + one["products"] + one["head"] < 1.3 * one["whole"]
