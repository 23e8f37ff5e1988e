"""Reads what a docstring says of fields or arguments: `name: text.`, or several at a time, `name, other: text.`"""

from __future__ import annotations

import re


def parameters(docstring: str, names: list[str]) -> dict[str, str]:
    """The meanings that a docstring gives to these names."""
    return {name: meaning for group, meaning in divide(docstring, names)[1] for name in group}


def divide(docstring: str, names: list[str]) -> tuple[str, list[tuple[list[str], str]]]:
    """A docstring without its descriptions of names, and these: the names that share one, and what it says."""
    any_name = "|".join(sorted(map(re.escape, names), key=len, reverse=True))
    if not any_name:
        return docstring, []
    entry = re.compile(rf"(?:(?<=^)|(?<=[.;]\s))((?:{any_name})(?:, (?:{any_name}))*): ")
    rest: list[str] = []
    found: list[tuple[list[str], str]] = []
    for paragraph in re.split(r"\n\s*\n", docstring):
        starts = list(entry.finditer(text := re.sub(r"\s*\n\s*", " ", paragraph.strip())))
        if not starts:
            rest.append(paragraph)
        elif before := text[: starts[0].start()].strip():
            rest.append(before)
        for start, end in zip(starts, [*starts[1:], None]):
            found.append((start.group(1).split(", "), text[start.end() : end.start() if end else None].strip()))
    return "\n\n".join(rest), found
