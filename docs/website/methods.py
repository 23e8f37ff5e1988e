"""The measured table of docs/concepts/methods.md, from what `benchmarks.methods` has left in benchmarks/results.

`python -m docs.website.methods` puts it into the page, which is committed with it; a test compares the two.
"""

from __future__ import annotations

import re
from pathlib import Path

from benchmarks.shared.report import markdown_table
from benchmarks.shared.result_pages import RESULTS, Row, read_run, read_tables

PAGE = Path(__file__).resolve().parents[1] / "concepts" / "methods.md"
_PLACE = re.compile(
    r"(?<=^<!-- figures: begin \(python -m docs\.website\.methods\) -->\n).*?(?=^<!-- figures: end -->$)", re.M | re.S
)
_LEFT_OUT = re.compile(r"^- (.+) was left out: (.+)$", re.M)
COLUMNS = ["method", "tokens/step", "calls", "over `autoregressive`", "over `generate`", "same text"]
MEASURED = ["tokens/step", "calls", "over autoregressive", "over generate", "same text"]

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
    """file: the page of results."""
    text, run = file.read_text(encoding="utf-8"), read_run(file)
    title = re.search(r"^# [^:]+: (.+)$", text, re.M)
    found = re.search(
        r"^(?:.*\. )?(\d+) prompts? \(.*\), up to (\d+) new tokens each.* Rounds, .*?: (\d+)\.", text, re.M
    )
    if not title or not found:
        raise ValueError(f"{file.name} does not say of what model and how many prompts it is")
    prompts, new_tokens, rounds = map(int, found.groups())
    threads = _number(int(run["threads"]), "thread")
    told = (
        f"[{title[1]}](../../benchmarks/results/{file.name}): {prompts} prompts, "
        f"{new_tokens} new tokens each, {_number(rounds, 'round')}, "
        f"{run.get('gpu') or f'{threads} of ' + run['cpu']}, {run['date'][:10]}."
    )
    if rounds < ENOUGH_ROUNDS:
        told += " So few rounds, on a machine that others may have used, say little of speeds; the counts are exact."
    rows = [_row(one) for one in read_tables(file)[0] if not one["method"].startswith("transformers")]
    left_out = [f"Left out: `{name}` ({reason})." for name, reason in _LEFT_OUT.findall(text)]
    return "\n\n".join([told, markdown_table(COLUMNS, rows), *left_out, ""])


def _number(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _row(one: Row) -> list[str]:
    name, _, label = one["method"].partition(", ")
    return [f"`{name}`{label and ', '}{label}", *(one[column] for column in MEASURED)]


if __name__ == "__main__":
    main()
