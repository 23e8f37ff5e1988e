"""Shows results: text as it comes, coloured by accepted run, or one JSON object for each prompt."""

from __future__ import annotations

import json
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator
from enum import StrEnum
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Protocol, TextIO

from rich.cells import cell_len
from rich.console import Console
from tqdm import tqdm

from lp.methods.registry import METHODS
from lp.request import BeamResult, Completion, Output

# The styles, taken in turn, for the text of a step that yielded several tokens. The text of a single token is plain.
RUN_STYLES = ("bold green", "bold cyan")


class Color(StrEnum):
    """Whether texts are coloured. auto: if standard output is a terminal."""

    auto = "auto"
    always = "always"
    never = "never"


# Characters that lines may be broken before and after: those of Chinese, Japanese and Korean.
_WIDE = "\u2e80-\ua4cf\uac00-\ud7af\uf900-\ufaff\uff00-\uffef"
_PARTS = re.compile(rf"\n|[^\S\n]+|[{_WIDE}]|[^\s{_WIDE}]+")
_FENCE = "```"

# A text and its style.
Styled = tuple[str, str | None]


class WordWrap:
    """Breaks lines between words as text comes. A word is held back until it is whole. Lines of code stay whole."""

    def __init__(self) -> None:
        self._column = 0
        self._line = ""  # its beginning
        self._space: Styled = ("", None)
        self._word: list[Styled] = []
        self._is_code = self._is_long = False

    def push(self, text: str, style: str | None, width: int) -> Iterator[Styled]:
        """Adds text; yields what can be shown. width: of a line."""
        for part in _PARTS.findall(text):
            if part.isspace():
                self._is_long = False
            if part == "\n":
                yield from self.flush(width)
                self._is_code ^= self._line.startswith(_FENCE)
                self._column, self._line = 0, ""
                yield part, style
            elif part.isspace():
                yield from self.flush(width)
                self._space = (self._space[0] + part, style)
            elif len(part) == 1 and cell_len(part) == 2:
                yield from self.flush(width)
                self._word.append((part, style))
                yield from self.flush(width)
            elif self._is_long:  # more of a word that no line has room for
                self._move(cell_len(part), width)
                yield part, style
            else:
                self._word.append((part, style))
                if self._length() >= width:
                    self._is_long = True
                    yield from self.flush(width)

    def flush(self, width: int) -> Iterator[Styled]:
        """Yields the word that is held back, with the space before it."""
        if not self._word:
            return
        length, (space, style) = self._length(), self._space
        if self._column and not self._is_code and self._column + cell_len(space) + length > width:
            yield "\n", None
            self._column = 0
        elif space:
            yield space, style
            self._column += cell_len(space)
        if len(self._line) < len(_FENCE):
            self._line += "".join(text for text, _ in self._word)
        yield from self._word
        self._move(length, width)
        self._word, self._space = [], ("", None)

    def _move(self, length: int, width: int) -> None:
        """Counts columns; the terminal itself breaks what is longer than a line."""
        self._column += length
        if self._column > width:
            self._column %= width

    def _length(self) -> int:
        return sum(cell_len(text) for text, _ in self._word)


class OutputConsole(Console):
    """A console that raises if its reader has left; rich would end the thread."""

    def on_broken_pipe(self) -> None:
        raise


class TextStream:
    """Writes to standard output at once, and notes beside the text to standard error."""

    def __init__(self, color: Color, wraps: bool = False):
        """wraps: whether lines on a terminal are broken between words."""
        forced = {Color.always: True, Color.never: False}.get(color)
        self.console = OutputConsole(force_terminal=forced, no_color=color == Color.never or None, soft_wrap=True)
        self.errors = OutputConsole(stderr=True, soft_wrap=True)
        self.num_runs = 0
        self._wrap = WordWrap() if wraps and self.console.is_terminal else None

    def write(self, text: str, style: str | None = None) -> None:
        """Writes text, and the word before it that is held back."""
        if self._wrap:
            for part, own in self._wrap.flush(self.console.width):
                self._write(part, own)
            self._wrap = WordWrap()
        self._write(text, style)

    def _write(self, text: str, style: str | None = None) -> None:
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
        for part, own in self._wrap.push(text, style, self.console.width) if self._wrap else [(text, style)]:
            self._write(part, own)

    def note(self, line: str, style: str | None = "dim") -> None:
        """Writes a line to standard error."""
        self.errors.print(line, style=style, markup=False, highlight=False, emoji=False)


class Display(Protocol):
    """Shows prompts: for each its beginning, its outputs and its result."""

    def begin(self, prompt: str) -> None: ...

    def show(self, output: Output) -> None: ...

    def end(self, completion: Completion, record: dict[str, Any]) -> None: ...


class TextOutput:
    """Streams text to standard output; a line of figures follows on standard error."""

    def __init__(self, color: Color, show_prompt: bool):
        self.stream = TextStream(color)
        self.show_prompt = show_prompt

    def begin(self, prompt: str) -> None:
        if self.show_prompt:
            self.stream.write(prompt, "dim")

    def show(self, output: Output) -> None:
        self.stream.write_run(output.text, len(output.tokens))

    def end(self, completion: Completion, record: dict[str, Any]) -> None:
        self.stream.write("\n")
        stats = completion.stats
        if completion.beams is not None:
            self._show_beams(completion.beams, record["decode"])
        self.stream.note(
            f"{stats.tokens} tokens in {stats.steps} steps ({stats.tokens_per_step:.2f} tokens per step), "
            f"{stats.tokens_per_s:.0f} tokens/s, first token after {stats.ttft_s * 1000:.0f} ms; "
            f"{record['decode']} on {record['ranks']} rank(s), finish reason: {completion.finish_reason}"
            + (f"; lossy ({stats.lossy}): not the model's own text" if stats.lossy else "")
        )

    def _show_beams(self, beams: BeamResult, method: str) -> None:
        for place, text in enumerate(beams.texts[1:], start=2):
            self.stream.note(f"{place}. (score {text.score:.4f}) {text.text}")
        self.stream.note(f"score {beams.texts[0].score:.4f}; {beams.num_calls} {METHODS[method].calls}")


class JSONOutput:
    """Writes one JSON object for each prompt to standard output, and a progress bar to standard error."""

    def __init__(self, num_prompts: int):
        self.bar = tqdm(total=num_prompts, unit="prompt", file=sys.stderr, disable=None if num_prompts > 1 else True)

    def begin(self, prompt: str) -> None:
        pass

    def show(self, output: Output) -> None:
        pass

    def end(self, completion: Completion, record: dict[str, Any]) -> None:
        print(json.dumps(record, ensure_ascii=False), flush=True)
        self.bar.update()


class Printer:
    """A Display that passes everything on to another `display`, in order and without waiting for it.

    Leaving its `with` block waits until the rest is shown. error: what ended the writing early; nothing is shown after
    it.
    """

    def __init__(self, display: Display):
        self.error: Exception | None = None
        self._display = display
        self._due: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._write, name="printer", daemon=True)

    def __enter__(self) -> Printer:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._due.put(None)
        self._thread.join()

    def begin(self, prompt: str) -> None:
        self._due.put(partial(self._display.begin, prompt))

    def show(self, output: Output) -> None:
        self._due.put(partial(self._display.show, output))

    def end(self, completion: Completion, record: dict[str, Any]) -> None:
        self._due.put(partial(self._display.end, completion, record))

    def _write(self) -> None:
        try:
            while write := self._due.get():
                write()
        except Exception as error:  # also ValueError: a character that the output's encoding does not have
            give_up_rest(sys.stdout)
            give_up_rest(sys.stderr)
            self.error = error


def give_up_rest(stream: TextIO) -> None:
    """Drops what a stream holds but cannot write; else Python would try again at exit and change the exit code."""
    try:
        stream.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


class TraceFile:
    """A Display that passes everything on to another one.

    A line has the number of the prompt, from 0, the step's text as far as it was whole, and the step's trace (see
    lp.StepTrace). Raises ValueError if the file cannot be written.
    """

    def __init__(self, display: Display, path: str):
        self._display = display
        self._number = -1
        try:
            self._file = Path(path).expanduser().open("w", encoding="utf-8")
        except OSError as error:
            raise ValueError(f"trace={path} cannot be written: {error.strerror}") from None

    def begin(self, prompt: str) -> None:
        self._number += 1
        self._display.begin(prompt)

    def show(self, output: Output) -> None:
        if output.trace is not None:
            line = {"prompt": self._number, "text": output.text, **output.trace.to_dict()}
            self._file.write(json.dumps(line, ensure_ascii=False, separators=(",", ":")) + "\n")
            self._file.flush()
        self._display.show(output)

    def end(self, completion: Completion, record: dict[str, Any]) -> None:
        self._display.end(completion, record)
