"""The estimate of a step on a GPU counts the real plan's kernels, and says that it is one."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchmarks.projections import gpu_step
from lp.platform.build import missing_triton
from tests.benchmarks.results import read

pytestmark = pytest.mark.skipif(bool(missing_triton()), reason=missing_triton() or "triton is there")


def test_a_fused_step_is_estimated_to_take_less(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = ["--model", "llama-1b", "--rows", "1,64", "--output", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", ["gpu_step", *options])
    gpu_step.main()
    text, data = read(tmp_path, "gpu_step-llama-1b")
    by_name = {(one["rows"], one["forward"]): one["us"] for one in data["steps"]}
    for rows in (1, 64):
        assert by_name[rows, "fused"] < by_name[rows, "without fusing"]
    assert "ESTIMATED" in text
    assert f"|products|{4 * 22 + 1}|" in text.replace(" ", "")


def test_long_contexts_are_worth_sharing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = ["--model", "llama-1b", "--rows", "64", "--context", "1024,32768", "--share", "2", "--output"]
    monkeypatch.setattr(sys, "argv", ["gpu_step", *options, str(tmp_path)])
    gpu_step.main()
    text, data = read(tmp_path, "gpu_step-llama-1b-shared")
    assert [(one["gpu"], one["context"]) for one in data["steps"]] == [
        (name, context) for name in ("H200 SXM", "H100 SXM, NVLink") for context in (1024, 32768)
    ]
    gains = [float(line.split("|")[-2].strip(" x")) for line in text.splitlines() if "SXM" in line and "x |" in line]
    assert gains[0] < 1.1 < gains[1] and gains[2] < 1.1 < gains[3]
    assert "No two GPUs have run one" in text


def test_a_step_with_quantised_weights_is_estimated_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = ["--model", "llama-130m", "--rows", "1", "--weights", "int4", "--output", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", ["gpu_step", *options])
    gpu_step.main()
    text, data = read(tmp_path, "gpu_step-llama-130m-int4")
    assert [one["forward"] for one in data["steps"]] == ["without fusing", "fused", "fused, int4"]
    assert "Products of weights in int4 decode as many numbers a second" in text
    assert f"|productsofpackedweights|{4 * 12 + 1}|" in text.replace(" ", "")
