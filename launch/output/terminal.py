"""How results are shown: text as it comes, coloured by accepted run, or one JSON object for each prompt."""

from __future__ import annotations

import json
import sys
from typing import Any, Protocol

from tqdm import tqdm

from launch.output.stream import Color, TextStream
from lp.nested.settings import BestOf
from lp.request import BeamResult, Completion, Output


class Display(Protocol):
    """Shows prompts: for each its beginning, its progress and its result."""

    def begin(self, prompt: str) -> None: ...

    def progress(self, progress: Output) -> None: ...

    def end(self, completion: Completion, record: dict[str, Any]) -> None: ...


class TextOutput:
    """Streams text to standard output; a line of figures follows on standard error."""

    def __init__(self, color: Color, show_prompt: bool):
        self.stream = TextStream(color)
        self.show_prompt = show_prompt

    def begin(self, prompt: str) -> None:
        if self.show_prompt:
            self.stream.write(prompt, "dim")

    def progress(self, progress: Output) -> None:
        self.stream.write_run(progress.text, len(progress.tokens))

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
        calls = f"the model was asked to continue {beams.num_calls} hypotheses"
        if method == BestOf.method:
            calls = f"all samples took {beams.num_calls} steps"
        self.stream.note(f"score {beams.texts[0].score:.4f}; {calls}")


class JSONOutput:
    """Writes one JSON object for each prompt to standard output, and a progress bar to standard error."""

    def __init__(self, num_prompts: int):
        self.bar = tqdm(total=num_prompts, unit="prompt", file=sys.stderr, disable=None if num_prompts > 1 else True)

    def begin(self, prompt: str) -> None:
        pass

    def progress(self, progress: Output) -> None:
        pass

    def end(self, completion: Completion, record: dict[str, Any]) -> None:
        print(json.dumps(record, ensure_ascii=False), flush=True)
        self.bar.update()
