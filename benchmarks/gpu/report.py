"""What a stage has found, as a table with a line for each item, and below it what the items themselves say."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.gpu.plan import STAGES, Item


@dataclass
class ItemState:
    """How an item stands. state: done, FAILED, waiting, or left out. seconds: that it took. output: the last lines of a
    failure.
    """

    item: Item
    state: str = "waiting"
    seconds: float | None = None
    summary: str = ""
    text: str = ""
    output: str = ""


def table(states: list[ItemState]) -> str:
    """A line for each item, which reads well as plain text."""
    rows = [("item", "state", "seconds", "what it found")]
    rows += [
        (one.item.name, one.state, "" if one.seconds is None else f"{one.seconds:.0f}", one.summary.replace("|", "/"))
        for one in states
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    lines = [f"| {' | '.join(cell.ljust(width) for cell, width in zip(row, widths))} | {row[3]} |" for row in rows]
    return "\n".join([lines[0], f"|{'|'.join('-' * (width + 2) for width in widths)}|---|", *lines[1:]])


def document(stage: str, command: str, facts: Mapping[str, Any], states: list[ItemState]) -> str:
    """The whole Markdown file of a stage."""
    date = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    sections = [f"# GPU, {stage}. {STAGES[stage]}", f"    {command}", describe_machine(facts, date), table(states)]
    for one in states:
        if one.text:
            sections.append(f"## {one.item.name}\n\n{one.text}")
    for one in states:
        if one.output and one.state == "FAILED":
            indented = "\n".join(f"    {line}" for line in one.output.splitlines())
            sections.append(f"## The end of the output of {one.item.name}\n\n{indented}")
    return "\n\n".join(sections) + "\n"


def describe_machine(facts: Mapping[str, Any], date: str) -> str:
    """Bullets. facts: what benchmarks.gpu.probe says."""
    lines = [f"date: {date}"]
    for one in facts.get("gpus", []):
        lines.append(
            f"gpu: {one['name']}, compute capability {one['capability']}, {one['memory_gb']} GB, "
            f"{one['multiprocessors']} multiprocessors"
        )
    if facts.get("why_no_gpu"):
        lines.append(f"no GPU: {facts['why_no_gpu']}")
    names = (
        "driver",
        "python",
        "torch",
        "cuda",
        "cudnn",
        "nccl",
        "transformers",
        "triton",
        "flash_attn",
        "flash_attn_interface",
        "varlen_attn",
    )
    lines += [f"{name}: {facts[name]}" for name in names if facts.get(name) is not None]
    lines += [f"{name} takes {told}" for name, told in facts.get("schemas", {}).items()]
    lines += describe_missing(facts.get("missing", {}))
    return "\n".join(f"- {line}" for line in lines)


def describe_missing(missing: Mapping[str, str]) -> list[str]:
    """Lines that say which wheels to bring along."""
    wanted = [name for name, why in missing.items() if not why.startswith("not ")]
    lines = [f"missing package {name}: {why}" for name, why in missing.items() if name in wanted]
    rest = [name for name in missing if name not in wanted]
    if rest:
        lines.append(f"missing and not needed here: {', '.join(rest)}")
    if wanted:
        lines.append(f"bring them along: pip download --no-deps -d wheels {' '.join(wanted)}")
    return lines


def write(path: Path, text: str) -> None:
    """Raises ValueError if the file cannot be written."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ValueError(f"{path} cannot be written: {error.strerror}") from error
