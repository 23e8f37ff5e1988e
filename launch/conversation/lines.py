"""Where the lines of a chat come from: an editor on a terminal, or a pipe with one message a line."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import WordCompleter
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.output import create_output
from prompt_toolkit.patch_stdout import patch_stdout

PROMPT = "> "


class Lines(Protocol):
    """is_interactive: whether a person types the lines and can react to an error."""

    is_interactive: bool

    def read(self) -> str:
        """The next message or command, without its end of line. Raises EOFError, and KeyboardInterrupt for Ctrl-C."""
        ...


class PipedLines:
    """The lines of standard input that are not blank."""

    is_interactive = False

    def read(self) -> str:
        while line := sys.stdin.readline():
            if line.strip():
                return line.rstrip("\r\n")
        raise EOFError


class EditedLines:
    """Lines that a person edits: Enter sends, Alt-Enter or Ctrl-J begins a new line, and pasted lines stay together."""

    is_interactive = True

    def __init__(self, commands: Sequence[str]):
        """commands: what the Tab key completes."""
        self._session: PromptSession[str] = PromptSession(
            multiline=True,
            key_bindings=_keys(),
            prompt_continuation=". ",
            completer=WordCompleter([*commands], sentence=True),
            complete_while_typing=False,
            output=create_output(always_prefer_tty=True),  # standard error, if answers go to a file
        )

    def read(self) -> str:
        while True:
            with patch_stdout(raw=True), _log_to_standard_error():
                line = self._session.prompt(PROMPT)
            if line.strip():
                return line


def open_lines(commands: Sequence[str]) -> Lines:
    return EditedLines(commands) if sys.stdin.isatty() else PipedLines()


def _keys() -> KeyBindings:
    keys = KeyBindings()

    @keys.add("enter")
    def send(event: KeyPressEvent) -> None:
        event.current_buffer.validate_and_handle()

    @keys.add("escape", "enter")
    @keys.add("c-j")
    def begin_line(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    @keys.add("c-c")
    def clear_or_leave(event: KeyPressEvent) -> None:
        """Ctrl-C drops what has been typed; at an empty prompt it leaves."""
        if event.current_buffer.text:
            event.current_buffer.reset()
        else:
            event.app.exit(exception=KeyboardInterrupt)

    return keys


@contextmanager
def _log_to_standard_error() -> Iterator[None]:
    """Sends the log to what sys.stderr is now, so that it appears above the line that is being edited."""
    handlers = [found for found in logging.getLogger().handlers if isinstance(found, logging.StreamHandler)]
    before = [handler.setStream(sys.stderr) for handler in handlers]
    try:
        yield
    finally:
        for handler, stream in zip(handlers, before, strict=True):
            if stream is not None:
                handler.setStream(stream)
