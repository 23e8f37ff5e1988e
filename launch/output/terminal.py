"""How results are shown: text as it comes, coloured by accepted run, or one JSON object for each prompt."""

from __future__ import annotations

import json
import sys
from typing import Any, Protocol

from rich.console import Console
from tqdm import tqdm

from lp.request import Completion, Progress

# The styles, taken in turn, for the text of a step that yielded several tokens. The text of a single token is plain.
RUN_STYLES = ("bold green", "bold cyan")


class Output(Protocol):
    """Shows prompts: for each its beginning, its progress and its result."""

    def begin(self, prompt: str) -> None: ...

    def progress(self, progress: Progress) -> None: ...

    def end(self, completion: Completion, record: dict[str, Any]) -> None: ...


class _Console(Console):
    """A console that raises if its reader has left; rich would end the thread."""

    def on_broken_pipe(self) -> None:
        raise


class TextOutput:
    """Streams text to standard output; a line of figures follows on standard error."""

    def __init__(self, color: str, show_prompt: bool):
        """color: auto, always or never."""
        forced = {"always": True, "never": False}.get(color)
        self.console = _Console(force_terminal=forced, no_color=color == "never" or None, soft_wrap=True)
        self.errors = _Console(stderr=True, soft_wrap=True)
        self.show_prompt = show_prompt
        self.num_runs = 0

    def _write(self, text: str, style: str | None) -> None:
        if not self.console.is_terminal:  # a file gets the text as it is, with its control characters
            self.console.file.write(text)
            return self.console.file.flush()
        self.console.print(text, style=style, end="", markup=False, highlight=False, emoji=False)
        self.console.file.flush()

    def begin(self, prompt: str) -> None:
        if self.show_prompt:
            self._write(prompt, "dim")

    def progress(self, progress: Progress) -> None:
        style = None
        if len(progress.tokens) > 1:
            style = RUN_STYLES[self.num_runs % len(RUN_STYLES)]
            self.num_runs += 1
        self._write(progress.text, style)

    def end(self, completion: Completion, record: dict[str, Any]) -> None:
        self._write("\n", None)
        stats = completion.stats
        self.errors.print(
            f"{stats.tokens} tokens in {stats.steps} steps ({stats.tokens_per_step:.2f} tokens per step), "
            f"{stats.tokens_per_s:.0f} tokens/s, first token after {stats.ttft_s * 1000:.0f} ms; "
            f"{record['decode']} on {record['ranks']} rank(s), finish reason: {completion.finish_reason}",
            style="dim",
            markup=False,
            highlight=False,
        )


class JSONOutput:
    """Writes one JSON object for each prompt to standard output, and a progress bar to standard error."""

    def __init__(self, num_prompts: int):
        self.bar = tqdm(total=num_prompts, unit="prompt", file=sys.stderr, disable=None if num_prompts > 1 else True)

    def begin(self, prompt: str) -> None:
        pass

    def progress(self, progress: Progress) -> None:
        pass

    def end(self, completion: Completion, record: dict[str, Any]) -> None:
        print(json.dumps(record, ensure_ascii=False), flush=True)
        self.bar.update()
