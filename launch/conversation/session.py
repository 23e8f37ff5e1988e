"""The chat itself: reads a line, obeys it if it is a command, and shows the answer if it is a message."""

from __future__ import annotations

import json
import os
import time
from contextlib import closing
from pathlib import Path

from launch.conversation.lines import Lines
from launch.conversation.model import KEYS, AnswerError, ChatModel, Figures, Options
from launch.data.output import TextStream

HELP = """\
/help             this list
/clear            forget the conversation; the settings stay
/retry            answer the last message again
/set key=value    change a setting; /set alone lists them, /set key= takes a change back
/save FILE        write the conversation as a line of JSON
/quit             leave (Ctrl-D, or Ctrl-C at an empty prompt)
Enter sends, Alt-Enter or Ctrl-J begins a new line, Ctrl-C ends an answer.
A message that begins with / is written with two."""
COMMANDS = ("/help", "/clear", "/retry", "/set", "/save", "/quit")


class Session:
    """One chat."""

    def __init__(self, model: ChatModel, lines: Lines, screen: TextStream, options: Options):
        """Raises ValueError for options that the model cannot use."""
        model.check(options)
        self._model, self._lines, self._screen = model, lines, screen
        self._start = self._options = options
        self._history = History()
        self._num_errors = 0
        self._is_over = False
        actions = (self._help, self._clear, self._retry, self._set, self._save, self._quit)
        self._commands = dict(zip(COMMANDS, actions, strict=True))

    def run(self) -> int:
        """Returns 0; 1 if something piped in was refused or had no answer.

        Raises KeyboardInterrupt for Ctrl-C if the lines are piped in, and whatever ends the model.
        """
        if self._lines.is_interactive:
            self._screen.note(f"{self._model.where}. /help lists the commands.")
        while not self._is_over:
            try:
                self._obey(self._lines.read())
            except EOFError:
                break
            except KeyboardInterrupt:
                if not self._lines.is_interactive:
                    raise
                break
        return 0 if self._lines.is_interactive else int(self._num_errors > 0)

    def _obey(self, line: str) -> None:
        try:
            if not line.startswith("/"):
                self._ask(line)
            elif line.startswith("//"):
                self._ask(line[1:])
            else:
                self._command(line)
        except (AnswerError, ValueError) as error:
            is_too_long = isinstance(error, AnswerError) and error.is_too_long
            self._error(f"{error}; /clear forgets the conversation" if is_too_long else str(error))

    def _command(self, line: str) -> None:
        name, _, rest = line.strip().partition(" ")
        if name not in self._commands:
            raise ValueError(
                f"{name} is no command; /help lists them, and a message that begins with / is written with two"
            )
        self._commands[name](rest.strip())

    def _ask(self, text: str) -> None:
        before = self._history.copy()
        self._history.ask(text)
        self._answer(before)

    def _answer(self, before: list[dict[str, str]]) -> None:
        """Shows an answer to the last message and keeps it.

        before: the conversation to go back to if there is no answer.
        """
        answer = _Answer()
        try:
            self._show(answer)
        except KeyboardInterrupt:
            answer.end = "stopped by Ctrl-C"
            if not self._lines.is_interactive:
                raise
        finally:
            if answer.text or answer.end == "stop":
                self._history.answer(answer.text)
                self._screen.write("" if answer.text.endswith("\n") else "\n")
            else:
                self._history.restore(before)
        self._screen.note(answer.line())

    def _show(self, answer: _Answer) -> None:
        messages = self._history.messages(self._options.system)
        with closing(self._model.answer(messages, self._options)) as parts:
            for part in parts:
                answer.first_after_s = answer.first_after_s or time.monotonic() - answer.began_at
                answer.text += part.text
                answer.figures = part.figures or answer.figures
                answer.end = part.finish_reason or answer.end
                self._screen.write_run(part.text, part.num_tokens)

    def _help(self, rest: str) -> None:
        self._screen.note(f"{HELP}\nSettings: {', '.join(KEYS)}", style=None)

    def _clear(self, rest: str) -> None:
        self._history.clear()

    def _retry(self, rest: str) -> None:
        before = self._history.copy()
        if not self._history.take_back_answer():
            raise ValueError("/retry has nothing to answer: the conversation is empty")
        self._answer(before)

    def _set(self, rest: str) -> None:
        if rest:
            changed = self._options.changed(rest, self._start)
            self._model.check(changed)
            self._options = changed
        for line in [] if rest else self._options.lines() or ["every setting is the model's own"]:
            self._screen.note(line, style=None)

    def _save(self, rest: str) -> None:
        self._screen.note(f"saved in {self._history.save(rest, self._options.system)}")

    def _quit(self, rest: str) -> None:
        self._is_over = True

    def _error(self, message: str) -> None:
        self._num_errors += 1
        self._screen.note(f"error: {message}", style="bold red")


class _Answer:
    """An answer so far. end: why it ended; empty while it has not. first_after_s: when its first text came."""

    def __init__(self) -> None:
        self.text = ""
        self.figures: Figures | None = None
        self.end = ""
        self.began_at = time.monotonic()
        self.first_after_s: float | None = None

    def line(self) -> str:
        """What the answer has cost, in one line."""
        parts = []
        if self.figures:
            parts += [f"{self.figures.tokens} tokens", f"{self.figures.tokens_per_s:.0f} tokens/s"]
            parts += [f"{self.figures.tokens_per_step:.2f} tokens per step"]
        if self.first_after_s is not None:
            parts.append(f"first text after {self.first_after_s * 1000:.0f} ms")
        ends = {"": "cut off", "stop": "", "length": "ended by its greatest length"}
        return ", ".join([*parts, *filter(None, [ends.get(self.end, self.end)])])


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
