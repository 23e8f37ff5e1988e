"""Shows results: text as it comes, coloured by accepted run, or one JSON object for each prompt."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable
from enum import StrEnum
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Protocol, TextIO

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
