"""Continues prompts, on one rank or several.

    python launch/generate.py prompt="def fibonacci(n):"
    torchrun --nproc-per-node 2 launch/generate.py parallel=lp decode=lookahead prompts=FILE.jsonl format=json

Text is streamed as it comes; format=json prints one JSON object for each prompt on standard output.
"""

from __future__ import annotations

import logging
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from launch.output.printer import Printer
from launch.output.terminal import JSONOutput, Output, TextOutput
from launch.program import configuration, process
from launch.program.runtime import RuntimeSettings, follow, running
from launch.prompts import collect
from launch.prompts.collect import NamedPrompt
from lp.engine import NOT_A_NUMBER
from lp.request import Completion, Progress, Request
from lp.request_builder import RequestBuilder
from lp.text.stopping import Stopping
from parallel.group import loop
from parallel.group.loop import Command

log = logging.getLogger("lookahead")


class Format(StrEnum):
    text = "text"
    json = "json"


class Color(StrEnum):
    auto = "auto"
    always = "always"
    never = "never"


@dataclass
class GenerateSettings(RuntimeSettings):
    """prompt, prompt_file, prompts: a text, a text file, a JSONL file; one of them must be given.

    max_new_tokens, stop, stop_token_ids, ignore_eos: see lp.Stopping. format, color: see launch.output.terminal.
    """

    prompt: str | None = None
    prompt_file: str | None = None
    prompts: str | None = None
    max_new_tokens: int | None = 128
    stop: list[str] = field(default_factory=list)
    stop_token_ids: list[int] = field(default_factory=list)
    ignore_eos: bool = False
    show_prompt: bool = True
    format: Format = Format.text
    color: Color = Color.auto


class PromptFeed:
    """Rank 0's inbox: one prompt after another, then shutdown. Collects what comes out and gives it to the printer.

    A signal, or output that cannot be written, ends the prompt at hand with what it has and leaves out the rest.
    """

    def __init__(
        self,
        request_builder: RequestBuilder,
        where: Mapping[str, Any],
        named: list[NamedPrompt],
        settings: GenerateSettings,
        printer: Printer,
    ):
        """where: what records say of the ranks. Raises ValueError naming the prompt that cannot be used."""
        self.where = where
        self.printer = printer
        self.waiting = _requests(request_builder, named, settings)[::-1]
        self.current: tuple[NamedPrompt, Request, Completion] | None = None
        self.interrupted_by: int | None = None
        self.failed: list[NamedPrompt] = []

    def interrupt(self, signal_number: int, frame: Any = None) -> None:
        """A signal handler."""
        self.interrupted_by = signal_number

    def has_waiting(self) -> bool:
        return self.interrupted_by is not None or self.printer.error is not None

    def take(self, wait_s: float) -> list[Command]:
        if self.current:
            return [{"cancel": self.current[1].id}]
        if self.has_waiting() or not self.waiting:
            return [{"shutdown": True}]
        prompt, request = self.waiting.pop()
        self.current = prompt, request, Completion()
        self.printer.begin(prompt.text)
        return [{"submit": request.to_dict()}]

    def emit(self, progress: Progress) -> None:
        assert self.current
        prompt, request, completion = self.current
        completion.extend(progress)
        self.printer.progress(progress)
        if progress.finish_reason == "error":
            self.failed.append(prompt)
        if progress.finish_reason:
            self.current = None
            self.printer.end(completion, _record(self.where, prompt, request, completion))


def _requests(
    request_builder: RequestBuilder, named: list[NamedPrompt], settings: GenerateSettings
) -> list[tuple[NamedPrompt, Request]]:
    """All requests, checked before the first is run. Raises ValueError naming the prompt that cannot be used."""
    stopping = Stopping(settings.max_new_tokens, settings.stop, settings.stop_token_ids, settings.ignore_eos)
    made = []
    for number, prompt in enumerate(named):
        try:
            request = request_builder.build(prompt.text, stopping=stopping, request_id=str(number))
        except ValueError as error:
            raise ValueError(f"{prompt.where}: {error}") from None
        made.append((prompt, request))
    return made


def _record(where: Mapping[str, Any], prompt: NamedPrompt, request: Request, completion: Completion) -> dict[str, Any]:
    stats = completion.stats
    record: dict[str, Any] = {
        "id": prompt.id,
        "prompt_tokens": stats.prompt_tokens,
        "token_ids": completion.token_ids,
        "text": completion.text,
        "finish_reason": completion.finish_reason,
        "steps": stats.steps,
        "tokens_per_step": round(stats.tokens_per_step, 4),
        "ttft_s": round(stats.ttft_s, 6),
        "decode_s": round(stats.decode_s, 6),
        "tokens_per_s": round(stats.tokens_per_s, 3),
        "decode": request.decode.method,
        **where,
        "seed": request.sampling.seed,
    }
    if completion.logprobs is not None:
        record["logprobs"] = [{"token": e.token, "logprob": e.logprob, "top": e.top} for e in completion.logprobs]
    return record


def output_of(settings: GenerateSettings, num_prompts: int) -> Output:
    """What shows the results as the settings want it."""
    if settings.format is Format.text:
        return TextOutput(settings.color.value, settings.show_prompt)
    return JSONOutput(num_prompts)


def run(settings: GenerateSettings) -> int:
    """Exit code 0, 1 if the model answered NaN, or 128 + the signal that ended it early.

    Raises OSError or ValueError if the output cannot be written, unless its reader has left: that counts as SIGPIPE.
    """
    named = collect.collect(settings.prompt, settings.prompt_file, settings.prompts)
    with running(settings) as runtime:
        if not runtime.channel.is_leader:
            return follow(runtime)
        where = {"parallel": runtime.mesh.mode, "ranks": runtime.mesh.num_ranks}
        with Printer(output_of(settings, len(named))) as printer:
            feed = PromptFeed(runtime.engine.request_builder, where, named, settings, printer)
            signal.signal(signal.SIGINT, feed.interrupt)
            signal.signal(signal.SIGTERM, feed.interrupt)
            loop.run(runtime.engine, runtime.channel, feed, feed.emit)
    if isinstance(printer.error, BrokenPipeError):
        return 128 + signal.SIGPIPE
    if printer.error:
        raise printer.error
    for prompt in feed.failed:
        log.error("error: %s: %s", prompt.where, NOT_A_NUMBER)
    return 128 + feed.interrupted_by if feed.interrupted_by else int(bool(feed.failed))


def main() -> int:
    configuration.register("generate", GenerateSettings)
    return process.main("generate", GenerateSettings, run, usage=__doc__ or "")


if __name__ == "__main__":
    sys.exit(main())
