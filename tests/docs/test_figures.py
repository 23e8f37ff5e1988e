"""The figures in the README's table of speed are those of the results."""

from __future__ import annotations

import json
from statistics import median

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


REAL_MODEL = "peers-SmolLM2-135M-Instruct.Q4_1.json"


def real_row(engine: str) -> list[str]:
    """The cells of a row of the table of the real model: for each number format, speed and two ratios."""
    found = json.loads((ROOT / "benchmarks" / "results" / REAL_MODEL).read_text(encoding="utf-8"))["comparisons"]
    cells = []
    for comparison in found:
        speeds = {one["name"]: median(one["decoding_tokens_per_s"]) for one in comparison["engines"]}
        ratios = [speeds[engine] / speeds[of] for of in ("transformers generate", "ours, autoregressive")]
        cells += [f"{speeds[engine]:.0f}", *(f"{ratio:.2f}x" for ratio in ratios)]
    return cells


@pytest.mark.parametrize(
    ("engine", "name"),
    [
        ("transformers generate", "transformers `generate`"),
        ("transformers prompt lookup (10)", "transformers, prompt lookup"),
        ("llama.cpp, server, plain", "llama.cpp"),
        ("llama.cpp, llama-lookup", "llama.cpp, lookup"),
        ("ours, autoregressive", "`autoregressive`"),
        ("ours, auto", "**`auto`, the default**"),
        ("ours, lookahead (15, 5, 15)", "`lookahead` (15, 5, 15), as in the paper"),
    ],
)
def test_the_readme_has_the_real_models_figures(engine: str, name: str):
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"| {' | '.join([name, *real_row(engine)])} |\n" in readme
