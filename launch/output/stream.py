"""A text on standard output as it comes; the tokens that one step yielded have a colour of their own."""

from __future__ import annotations

from enum import StrEnum

from rich.console import Console

# The styles, taken in turn, for the text of a step that yielded several tokens. The text of a single token is plain.
RUN_STYLES = ("bold green", "bold cyan")


class Color(StrEnum):
    """Whether texts are coloured. auto: if standard output is a terminal."""

    auto = "auto"
    always = "always"
    never = "never"


class OutputConsole(Console):
    """A console that raises if its reader has left; rich would end the thread."""

    def on_broken_pipe(self) -> None:
        raise


class TextStream:
    """Writes to standard output at once, and notes beside the text to standard error."""

    def __init__(self, color: Color):
        forced = {Color.always: True, Color.never: False}.get(color)
        self.console = OutputConsole(force_terminal=forced, no_color=color == Color.never or None, soft_wrap=True)
        self.errors = OutputConsole(stderr=True, soft_wrap=True)
        self.num_runs = 0

    def write(self, text: str, style: str | None = None) -> None:
        if not self.console.is_terminal:  # a file gets the text as it is, with its control characters
            self.console.file.write(text)
            return self.console.file.flush()
        self.console.print(text, style=style, end="", markup=False, highlight=False, emoji=False)
        self.console.file.flush()

    def write_run(self, text: str, num_tokens: int) -> None:
        """Writes the text of one step, coloured if it yielded several tokens."""
        style = None
        if num_tokens > 1:
            style = RUN_STYLES[self.num_runs % len(RUN_STYLES)]
            self.num_runs += 1
        self.write(text, style)

    def note(self, line: str, style: str | None = "dim") -> None:
        """Writes a line to standard error."""
        self.errors.print(line, style=style, markup=False, highlight=False, emoji=False)
