"""Where prompts come from: the command line, a text file, or a JSONL file with one prompt a line.

A prompt is a text to continue, or the messages of a conversation to answer."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lp.text.chat_template import check_message

ONE_MESSAGE = '[{"role": "user", "content": "..."}]'


@dataclass(frozen=True)
class NamedPrompt:
    """A prompt and what to call it in results. prompt: a text, or messages. where: how error messages name it."""

    id: str
    prompt: str | list[dict[str, str]]
    where: str

    @property
    def shown(self) -> str:
        """What is shown before the answer: the text itself, or the last message."""
        return self.prompt if isinstance(self.prompt, str) else self.prompt[-1]["content"] + "\n\n"

    def as_message(self) -> NamedPrompt:
        """The prompt as a conversation: a text becomes its user's message."""
        if not isinstance(self.prompt, str):
            return self
        return replace(self, prompt=[{"role": "user", "content": self.prompt}])


@dataclass
class PromptSettings:
    """Where the prompts come from; exactly one of the first four must be given.

    prompt: a text. prompt_file: a text file. prompts: a JSONL file. messages: a conversation, as a JSON list of
    objects with a role and a content. chat: whether a text is put as a user's message into the checkpoint's chat
    template; messages always are.
    """

    prompt: str | None = None
    prompt_file: str | None = None
    prompts: str | None = None
    messages: str | None = None
    chat: bool = False


def collect(settings: PromptSettings) -> list[NamedPrompt]:
    """The prompts to continue or answer. Raises ValueError naming the file and line that cannot be used."""
    found = _collect(settings)
    return [prompt.as_message() for prompt in found] if settings.chat else found


def _collect(settings: PromptSettings) -> list[NamedPrompt]:
    given = [key for key in ("prompt", "prompt_file", "prompts", "messages") if getattr(settings, key)]
    if len(given) != 1:
        found = f"got {' and '.join(given)}" if given else "none has any text"
        raise ValueError(f"give one of prompt=TEXT, prompt_file=FILE, prompts=JSONL or messages=JSON ({found})")
    if settings.prompt:
        return [NamedPrompt("0", settings.prompt, "prompt")]
    if settings.messages:
        return [NamedPrompt("0", _conversation(_messages_of(settings.messages), "messages"), "messages")]
    if settings.prompt_file:
        path = settings.prompt_file
        return [NamedPrompt(Path(path).name, _read(path), f"prompt_file={path}")]
    assert settings.prompts
    found = list(_lines(settings.prompts))
    if not found:
        raise ValueError(f"prompts={settings.prompts} holds no prompts")
    return found


def _messages_of(messages: str) -> Any:
    try:
        return json.loads(messages)
    except json.JSONDecodeError as error:
        raise ValueError(
            f"messages is not JSON: {error.msg} at column {error.colno}; write a list like {ONE_MESSAGE}"
        ) from None


def _conversation(messages: Any, where: str) -> list[dict[str, str]]:
    if not isinstance(messages, list) or not messages:
        raise ValueError(f"{where} must be a list of messages like {ONE_MESSAGE}")
    try:
        return [check_message(message, number) for number, message in enumerate(messages)]
    except ValueError as error:
        raise ValueError(str(error) if where == "messages" else f"{where}: {error}") from None


def _read(path: str) -> str:
    try:
        return Path(path).read_bytes().decode("utf-8")
    except OSError as error:
        raise ValueError(f"prompt_file={path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"prompt_file={path} is not UTF-8 text: byte {error.start} cannot be decoded") from None


def _lines(path: str) -> Iterator[NamedPrompt]:
    """The prompts of a file whose lines are JSON objects.

    A line has `prompt` (or `turns`, as Spec-Bench does, whose first is taken) or `messages`, and may have `id`.
    """
    for line in json_lines(path, "prompts"):
        yield NamedPrompt(_id(line), _prompt(line), line.where)


def _id(line: JSONLine) -> str:
    return str(line.value.get("id", line.number - 1)) if isinstance(line.value, dict) else str(line.number - 1)


def _prompt(line: JSONLine) -> str | list[dict[str, str]]:
    if isinstance(line.value, dict) and "messages" in line.value:
        if "prompt" in line.value:
            raise ValueError(f'{line.where} has both "prompt" and "messages"; leave one out')
        return _conversation(line.value["messages"], line.where)
    text = _text(line.value)
    if not isinstance(text, str) or not text:
        raise ValueError(
            f'{line.where} has no text under "prompt"; a line looks like {{"id": "a", "prompt": "..."}} '
            f'or {{"messages": {ONE_MESSAGE}}}'
        )
    return text


def _text(record: Any) -> Any:
    if not isinstance(record, dict):
        return None
    turns = record.get("turns")
    return record.get("prompt", turns[0] if isinstance(turns, list) and turns else None)


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


@contextmanager
def naming(where: str) -> Iterator[None]:
    """Puts `where`, which names a prompt, before the message of a ValueError that the body raises."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None
