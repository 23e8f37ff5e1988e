"""Results of the benchmarks: a progress bar, the machine described, tables, and files in the results folder."""

from __future__ import annotations

import datetime
import json
import platform
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import transformers
from tabulate import tabulate
from tqdm import tqdm

from benchmarks.shared.options import command_line
from lp.platform.processor import num_cores, processor_name

if TYPE_CHECKING:
    from matplotlib.figure import Figure

T = TypeVar("T")


def progress(items: Sequence[T], description: str, unit: str = "prompt") -> Iterator[T]:
    """Yields the items and shows a progress bar on stderr."""
    yield from tqdm(items, desc=description, unit=unit, file=sys.stderr, dynamic_ncols=True)


def describe_run() -> dict[str, Any]:
    """Command line, date, hardware and versions, without which a figure means nothing."""
    return {
        "command": " ".join([command_line(), *map(_without_folder, sys.argv[1:])]),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "cpu": processor_name(),
        "cores": num_cores(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }


def _without_folder(argument: str) -> str:
    """Drops the folders of the measuring machine, which are nobody's business, from an argument that is a path."""
    return Path(argument).name if Path(argument).is_absolute() else argument


def markdown_table(columns: Sequence[str], rows: Iterable[Sequence[Any]], num_text: int = 1) -> str:
    """A table that also reads well as plain text. Columns after the first `num_text` are aligned to the right."""
    aligned = ["left" if column < num_text else "right" for column in range(len(columns))]
    return tabulate(list(rows), headers=columns, tablefmt="pipe", colalign=aligned, disable_numparse=True)


def bullets(lines: Iterable[str]) -> str:
    """A list in Markdown, one item for each line."""
    return "\n".join(f"- {line}" for line in lines)


def describe_failures(failures: Sequence[str]) -> str:
    """The part of a report that lists what failed."""
    return f"FAILED:\n\n{bullets(failures)}" if failures else "Nothing failed."


def publish(folder: Path, name: str, title: str, body: str, data: dict[str, Any], figure: Figure | None = None) -> None:
    """Prints the body and writes NAME.md, NAME.json and, if there is a figure, NAME.svg.

    The Markdown and the JSON file also describe the run. The raw figures are not part of the repository (.gitignore).
    """
    run = describe_run()
    described = bullets(f"{key}: {value}" for key, value in run.items() if key != "command" and value is not None)
    folder.mkdir(parents=True, exist_ok=True)
    shown = body
    if figure is not None:
        figure.savefig(folder / f"{name}.svg", metadata={"Date": None})
        shown = f"![{title}]({name}.svg)\n\n{body}"
    text = f"# {title}\n\n    {run['command']}\n\n{described}\n\n{shown}\n"
    (folder / f"{name}.md").write_text(text, encoding="utf-8")
    (folder / f"{name}.json").write_text(json.dumps({"run": run, **data}, indent=1) + "\n", encoding="utf-8")
    print(body)
    print(f"written to {folder / name}.md, .json{'' if figure is None else ' and .svg'}", file=sys.stderr)
