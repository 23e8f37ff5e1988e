"""The measured table of docs/concepts/methods.md, from what `benchmarks.methods` has left in benchmarks/results.

`python -m docs.website.methods` puts it into the page, which is committed with it; a test compares the two.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from benchmarks.shared.report import markdown_table
from docs.website.results import RESULTS

PAGE = Path(__file__).resolve().parents[1] / "concepts" / "methods.md"
_PLACE = re.compile(
    r"(?<=^<!-- figures: begin \(python -m docs\.website\.methods\) -->\n).*?(?=^<!-- figures: end -->$)", re.M | re.S
)
COLUMNS = ["method", "tokens/step", "calls", "over `autoregressive`", "over `generate`", "same text"]

# Rounds whose median is worth something.
ENOUGH_ROUNDS = 3


def main() -> None:
    PAGE.write_text(with_figures(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


def with_figures(page: str) -> str:
    """The text of the page with the present results. Raises ValueError if it has no place for them."""
    changed, number = _PLACE.subn(lambda _: f"\n{all_tables()}\n", page)
    if number != 1:
        raise ValueError(f"{PAGE.name} has {number} places for figures instead of one")
    return changed


def all_tables() -> str:
    """A table for each model and number format that was measured; the links are those of a page in docs/concepts."""
    return "\n".join(table(file) for file in sorted(RESULTS.glob("methods-*.md")))


def table(file: Path) -> str:
    """file: the results' page, beside which their figures lie."""
    found: dict[str, Any] = json.loads(file.with_suffix(".json").read_text(encoding="utf-8"))
    run = found["run"]
    told = (
        f"[{found['model']}, {found['dtype']}](../../benchmarks/results/{file.name}): {found['prompts']} prompts, "
        f"{found['max_new_tokens']} new tokens each, {_number(found['rounds'], 'round')}, "
        f"{_number(run['threads'], 'thread')} of {run['cpu']}, {run['date'][:10]}."
    )
    if found["rounds"] < ENOUGH_ROUNDS:
        told += " So few rounds, on a machine that others may have used, say little of speeds; the counts are exact."
    rows = [_row(one) for one in found["methods"] if not one["method"].startswith("transformers")]
    left_out = [f"Left out: `{name}` ({reason})." for name, reason in found["skipped"].items()]
    return "\n\n".join([told, markdown_table(COLUMNS, rows), *left_out, ""])


def _number(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _row(one: dict[str, Any]) -> list[str]:
    name, _, label = one["method"].partition(", ")
    return [
        f"`{name}`{label and ', '}{label}",
        f"{one['tokens_per_step']:.2f}",
        f"{one['calls']:.1f}",
        f"{one['over_autoregressive']:.2f}x",
        f"{one['over_generate']:.2f}x",
        "" if one["same_text"] is None else f"{one['same_text']}/{one['num_texts']}",
    ]


if __name__ == "__main__":
    main()
