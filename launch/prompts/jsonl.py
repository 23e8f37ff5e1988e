"""Reads JSONL files that a user gives: one JSON value on each line. Knows nothing of what the values mean."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class JSONLine:
    """The value of a line. number: counted from 1. where: file and line, as error messages name them."""

    number: int
    where: str
    value: Any


def json_lines(path: str, key: str) -> Iterator[JSONLine]:
    """The lines of a JSONL file that are not blank. key: the setting that names the file.

    Raises ValueError naming the file or the line that cannot be read.
    """
    try:
        with open(path, "rb") as lines:
            for number, line in enumerate(lines, start=1):
                where = f"{path}, line {number}"
                if line.strip():
                    yield JSONLine(number, where, _json(line, where))
    except OSError as error:
        raise ValueError(f"{key}={path} cannot be read: {error.strerror}; give a JSONL file") from None


def _json(line: bytes, where: str) -> Any:
    try:
        return json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{where} is not UTF-8 text: byte {error.start} cannot be decoded; save the file as UTF-8"
        ) from None
    except json.JSONDecodeError as error:
        raise ValueError(
            f"{where} is not JSON: {error.msg} at column {error.colno}; a line holds one JSON object"
        ) from None
