"""Finds links and files that a document of the project names and that do not exist. Knows nothing of their meaning."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

_FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_URL = re.compile(r"\w+://\S+")
_PATH = re.compile(r"(?<![\w./-])[\w.-]+/[\w./*-]*")
_ROOT_FILE = re.compile(r"`([\w.-]+\.(?:md|toml|txt)|Makefile|LICENSE)`")
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


def faults(text: str, folder: Path) -> list[str]:
    """What the text of a document in `folder` names and the checkout does not have; empty if it has everything."""
    return [*broken_links(text, folder), *_missing_files(text, folder)]


def anchors(text: str) -> set[str]:
    """The anchors of a document's headings, made as GitHub makes them."""
    headings = _HEADING.findall(_FENCE.sub("", text))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken_links(text: str, folder: Path) -> Iterator[str]:
    """The links of a document in `folder` that lead nowhere."""
    for link in _LINK.findall(_FENCE.sub("", text)):
        path, _, anchor = link.partition("#")
        target = folder / path
        if "://" in link:
            continue
        if path and not target.exists():
            yield f"the link {link} leads nowhere"
        elif anchor and anchor not in anchors(target.read_text(encoding="utf-8") if path else text):
            yield f"the link {link} names no heading"


def _missing_files(text: str, folder: Path) -> Iterator[str]:
    """Paths that begin with a folder of the checkout or of the document; `*` stands for any name."""
    plain = _URL.sub("", _LINK.sub("", text))
    for name in _PATH.findall(plain):
        name = name.rstrip(".")
        bases = [base for base in (ROOT, folder) if (base / name.partition("/")[0]).is_dir()]
        if bases and not any(any(base.glob(name)) for base in bases):
            yield f"{name} does not exist"
    for name in _ROOT_FILE.findall(plain):
        if not any((base / name).exists() for base in (ROOT, folder)):
            yield f"{name} does not exist"
