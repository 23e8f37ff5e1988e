"""The figures in the README's table of speed are those of the results."""

from __future__ import annotations

import json

import pytest

from tests.docs.links import ROOT

DTYPES = ("float32", "bfloat16")


def read(dtype: str, temperature: str) -> dict[str, dict[str, float]]:
    """The figures of each method, of a run of `python -m benchmarks.tokens_per_step` with the demo model."""
    file = ROOT / "benchmarks" / "results" / f"tokens_per_step-python-11m-{dtype}-T{temperature}.json"
    return {entry["method"]: entry for entry in json.loads(file.read_text(encoding="utf-8"))["figures"]}


def row(method: str, temperature: str) -> list[str]:
    """The cells of a row of the table, without the method's name."""
    runs = [read(dtype, temperature) for dtype in DTYPES]
    cells = [temperature, f"{runs[0][method]['tokens_per_step']:.2f}"]
    for baseline in ("transformers generate", "autoregressive"):
        ratios = [run[method]["tokens_per_s"] / run[baseline]["tokens_per_s"] for run in runs]
        cells.append(" / ".join(f"{ratio:.2f}x" for ratio in ratios))
    return cells


@pytest.mark.parametrize(
    ("method", "name", "temperature"),
    [
        ("autoregressive", "`autoregressive`", "0"),
        ("lookahead (7, 5, 7)", "`lookahead` (7, 5, 7), as in the paper", "0"),
        *(("auto", "`auto`, the default", temperature) for temperature in ("0", "0.8", "1")),
    ],
)
def test_the_readme_has_the_measured_figures(method: str, name: str, temperature: str):
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"| {' | '.join([name, *row(method, temperature)])} |\n" in readme
