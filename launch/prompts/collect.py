"""Where prompts come from: the command line, a text file, or a JSONL file with one prompt a line."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launch.prompts.jsonl import json_lines


@dataclass(frozen=True)
class NamedPrompt:
    """A prompt and what to call it in results. where: how error messages name it."""

    id: str
    text: str
    where: str


def collect(prompt: str | None, prompt_file: str | None, prompts: str | None) -> list[NamedPrompt]:
    """The prompts to continue. Exactly one of the three sources must be given.

    Raises ValueError naming the file and line that cannot be used.
    """
    given = [key for key, value in (("prompt", prompt), ("prompt_file", prompt_file), ("prompts", prompts)) if value]
    if len(given) != 1:
        found = f"got {' and '.join(given)}" if given else "none has any text"
        raise ValueError(f"give one of prompt=TEXT, prompt_file=FILE or prompts=JSONL ({found})")
    if prompt:
        return [NamedPrompt("0", prompt, "prompt")]
    if prompt_file:
        return [NamedPrompt(Path(prompt_file).name, _read(prompt_file), f"prompt_file={prompt_file}")]
    assert prompts
    found = list(_lines(prompts))
    if not found:
        raise ValueError(f"prompts={prompts} holds no prompts")
    return found


def _read(path: str) -> str:
    try:
        return Path(path).read_bytes().decode("utf-8")
    except OSError as error:
        raise ValueError(f"prompt_file={path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"prompt_file={path} is not UTF-8 text: byte {error.start} cannot be decoded") from None


def _lines(path: str) -> Iterator[NamedPrompt]:
    """The prompts of a file whose lines are JSON objects.

    A line has `prompt` (or `turns`, as Spec-Bench does, whose first is taken) and may have `id`.
    """
    for line in json_lines(path, "prompts"):
        text = _text(line.value)
        if not isinstance(text, str) or not text:
            raise ValueError(
                f'{line.where} has no text under "prompt"; a line looks like {{"id": "a", "prompt": "..."}}'
            )
        yield NamedPrompt(str(line.value.get("id", line.number - 1)), text, line.where)


def _text(record: Any) -> Any:
    if not isinstance(record, dict):
        return None
    turns = record.get("turns")
    return record.get("prompt", turns[0] if isinstance(turns, list) and turns else None)
