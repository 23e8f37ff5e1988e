"""Where prompts come from: the command line, a text file, or a JSONL file with one prompt a line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class NamedPrompt:
    """A prompt and what to call it in results. where: how error messages name it."""

    id: str
    text: str
    where: str


def collect(prompt: str | None, prompt_file: str | None, prompts: str | None) -> list[NamedPrompt]:
    """Exactly one of the three must be given. Raises ValueError naming the file and line that cannot be used."""
    given = [key for key, value in (("prompt", prompt), ("prompt_file", prompt_file), ("prompts", prompts)) if value]
    if len(given) != 1:
        found = f"got {' and '.join(given)}" if given else "none has any text"
        raise ValueError(f"give one of prompt=TEXT, prompt_file=FILE or prompts=JSONL ({found})")
    if prompt:
        return [NamedPrompt("0", prompt, "prompt")]
    if prompt_file:
        return [NamedPrompt(Path(prompt_file).name, _read(prompt_file, "prompt_file"), f"prompt_file={prompt_file}")]
    assert prompts
    found = list(_lines(prompts))
    if not found:
        raise ValueError(f"prompts={prompts} holds no prompts")
    return found


def _read(path: str, key: str) -> str:
    try:
        return Path(path).read_bytes().decode("utf-8")
    except OSError as error:
        raise ValueError(f"{key}={path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"{key}={path} is not UTF-8 text: byte {error.start} cannot be decoded") from None


def _lines(path: str) -> Iterator[NamedPrompt]:
    """A line is a JSON object with `prompt` (or Spec-Bench's `turns`: the first is taken) and, if it likes, `id`."""
    for number, line in enumerate(_read(path, "prompts").split("\n"), start=1):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        try:
            record = json.loads(line)
        except json.JSONDecodeError as error:
            raise ValueError(f"{where} is not JSON: {error.msg} at column {error.colno}") from None
        text = _text(record)
        if not isinstance(text, str) or not text:
            raise ValueError(f'{where} has no text under "prompt"; a line looks like {{"id": "a", "prompt": "..."}}')
        yield NamedPrompt(str(record.get("id", number - 1)), text, where)


def _text(record: Any) -> Any:
    if not isinstance(record, dict):
        return None
    turns = record.get("turns")
    return record.get("prompt", turns[0] if isinstance(turns, list) and turns else None)
