"""The figures in the README's table of speed are those of the results."""

from __future__ import annotations

import pytest

from benchmarks.shared.result_pages import RESULTS, Row, read_tables
from tests.docs.links import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")
PEERS = RESULTS / "peers-SmolLM2-135M-Instruct.Q4_1.md"


def engines(table: int) -> dict[str, Row]:
    """The table of all engines in a number format. table: its place on the page."""
    return {row["engine"]: row for row in read_tables(PEERS)[table]}


@pytest.mark.parametrize(
    ("engine", "name"),
    [
        ("transformers generate", "transformers `generate`"),
        ("transformers prompt lookup (10)", "transformers, prompt lookup"),
        ("llama.cpp, llama-bench", "llama.cpp, `llama-bench`"),
        ("llama.cpp, server, plain", "llama.cpp, server"),
        ("llama.cpp, llama-lookup", "llama.cpp, lookup"),
        ("ours, autoregressive", "`autoregressive`"),
        ("ours, auto", "**`auto`, the default**"),
        ("ours, lookahead (15, 5, 15)", "`lookahead` (15, 5, 15), as in the paper"),
    ],
)
def test_the_readme_has_the_measured_figures(engine: str, name: str) -> None:
    cells = [name, "1 x 2"]
    for table in (0, 2):  # float32 and bfloat16; the tables between them are by category
        row = engines(table)[engine]
        cells += [row["decoding alone, tokens/s"], row["over generate"]]
    assert f"| {' | '.join(cells)} |\n" in README


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("method", ["auto", "lookahead (15, 5, 15)"])
def test_the_readme_has_the_measured_gain_of_a_second_rank(method: str, dtype: str) -> None:
    measured = (ROOT / "docs" / "measurements.md").read_text(encoding="utf-8")
    name, _, setting = method.partition(" ")
    (row,) = (
        line for line in measured.splitlines() if line.startswith(f"| {dtype}, `{name}`{setting and ' '}{setting} |")
    )
    _, _, two, ratio, _ = (cell.strip() for cell in row.strip("|").split("|"))
    assert f" {two} | {ratio} |" in README
