"""The messages of a chat. Knows nothing of models and terminals."""

from __future__ import annotations

import json
import os
from pathlib import Path


class History:
    """What was said, without the system prompt, which is a setting."""

    def __init__(self) -> None:
        self._said: list[dict[str, str]] = []
        self._saved: set[Path] = set()

    def ask(self, text: str) -> None:
        self._said.append({"role": "user", "content": text})

    def answer(self, text: str) -> None:
        self._said.append({"role": "assistant", "content": text})

    def copy(self) -> list[dict[str, str]]:
        """What was said so far, for `restore`."""
        return [*self._said]

    def restore(self, said: list[dict[str, str]]) -> None:
        self._said = said

    def take_back_answer(self) -> bool:
        """Forgets the last answer, so that its question is open again. False if there is none."""
        if not self._said:
            return False
        if self._said[-1]["role"] == "assistant":
            self._said.pop()
        return True

    def clear(self) -> None:
        self._said.clear()

    def messages(self, system: str | None) -> list[dict[str, str]]:
        """The conversation as a chat template takes it."""
        return [*([{"role": "system", "content": system}] if system else []), *self._said]

    def save(self, name: str, system: str | None) -> str:
        """Writes the conversation as one line of JSON, which `prompts=FILE` of launch/generate.py reads.

        Returns the path. Raises ValueError if it cannot be written, or would replace a file that this chat has not
        written.
        """
        if not name:
            raise ValueError("/save needs a file's name: /save talk.jsonl")
        path = Path(os.path.expanduser(name)).absolute()
        try:
            with path.open("w" if path in self._saved else "x", encoding="utf-8") as file:
                file.write(json.dumps({"messages": self.messages(system)}, ensure_ascii=False) + "\n")
        except FileExistsError:
            raise ValueError(f"{path} is there already; choose another name") from None
        except (OSError, UnicodeEncodeError) as error:
            raise ValueError(f"{path} cannot be written: {getattr(error, 'strerror', None) or error}") from None
        self._saved.add(path)
        return str(path)
