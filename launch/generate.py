"""Continues prompts, on one rank or several.

    python launch/generate.py prompt="def fibonacci(n):"
    torchrun --nproc-per-node 2 launch/generate.py parallel=lp decode=lookahead prompts=FILE.jsonl format=json
    python launch/generate.py model=smollm2 chat=true prompt="What is a prime number?"

Text is streamed as it comes; format=json prints one JSON object for each prompt on standard output.
"""

from __future__ import annotations

import logging
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, cast

import launch.config.early  # noqa: F401  before the imports that take seconds
from launch.config import engine_settings, process
from launch.config.ending import leave
from launch.config.runtime import RuntimeSettings, follow, running
from launch.data.output import Color, Display, JSONOutput, Printer, TextOutput, TraceFile
from launch.data.prompt_queue import PromptQueue
from launch.data.prompts import NamedPrompt, PromptSettings, collect, naming
from lp.engine.engine import NOT_A_NUMBER
from lp.engine.input import RequestBuilder
from lp.grammar.settings import KINDS, Grammar, GrammarKind
from lp.request import Completion, Output, Request
from lp.text.stopping import REFUSALS, Stopping
from parallel.groups.worker import run_engine
from parallel.mesh import name_mode

log = logging.getLogger("lookahead")


class Format(StrEnum):
    text = "text"
    json = "json"


@dataclass
class GrammarSettings:
    """What every text must be.

    kind: json_object, json_schema, regex, choice or grammar; None is anything. text: the schema, the regular
    expression, the choices as a JSON list, or the grammar (see lp.Grammar). file: a file that holds the text. open:
    whether objects may have properties that the schema does not name where it has no additionalProperties.
    """

    kind: str | None = None
    text: str = ""
    file: str | None = None
    open: bool = False

    def read(self) -> Grammar | None:
        """Raises ValueError for settings that cannot be used."""
        if self.kind is None:
            if self.text or self.file:
                raise ValueError(f"grammar.kind must say what the text is: one of {', '.join(KINDS)}")
            return None
        if self.file and self.text:
            raise ValueError("grammar.text and grammar.file exclude each other")
        try:
            text = Path(self.file).expanduser().read_text(encoding="utf-8") if self.file else self.text
        except (OSError, UnicodeDecodeError) as error:
            raise ValueError(f"grammar.file={self.file} cannot be read: {error}") from None
        grammar = Grammar(cast(GrammarKind, self.kind), text)
        grammar.check()
        return grammar if self.open else grammar.closed()


@dataclass
class GenerateSettings(PromptSettings, RuntimeSettings):
    """The settings of the program, in addition to those of every program and those that name the prompts.

    max_new_tokens: the most new tokens of a text; None is as many as the context has room for. stop: strings at which a
    text ends; the string itself is left out. stop_token_ids: tokens at which a text ends. ignore_eos: whether a text
    goes on after its end-of-sequence token. grammar: what every text must be. show_prompt: whether the prompt is
    printed before its text. format: text is streamed as it comes; json prints one JSON object for each prompt. color:
    whether tokens that one step yielded together have a colour. trace: a file for what every step did, in JSON lines.
    """

    max_new_tokens: int | None = 128
    stop: list[str] = field(default_factory=list)
    stop_token_ids: list[int] = field(default_factory=list)
    ignore_eos: bool = False
    grammar: GrammarSettings = field(default_factory=GrammarSettings)
    show_prompt: bool = True
    format: Format = Format.text
    color: Color = Color.auto
    trace: str | None = None


class Continuations:
    """What becomes of the prompts: hands them to its queue, and what comes out of them to the printer.

    Output that cannot be written ends the queue, as a signal does. queue: the inbox of rank 0.
    """

    def __init__(
        self,
        request_builder: RequestBuilder,
        where: Mapping[str, Any],
        named: list[NamedPrompt],
        given: Mapping[str, Any],
        printer: Printer,
    ):
        """where: what records say of the ranks. given: see `shared_by_requests`.

        Raises ValueError naming the prompt that cannot be used.
        """
        requests = _requests(request_builder, named, given)
        self.queue = PromptQueue(requests, on_begin=self._begin)
        self._where = where
        self._printer = printer
        self._prompts = dict(zip((request.id for request in requests), named, strict=True))
        self._current: tuple[Request, Completion] | None = None
        self._failures: list[str] = []

    def emit(self, output: Output) -> None:
        """Takes what a step added to the current prompt."""
        assert self._current
        request, completion = self._current
        if output.finish_reason in REFUSALS:
            self._fail(request, output.text)
            output = replace(output, text="")
        completion.extend(output)
        self._printer.show(output)
        if output.finish_reason == "error":
            self._fail(request, NOT_A_NUMBER)
        if output.finish_reason:
            self._printer.end(completion, _record(self._where, self._prompts[request.id], request, completion))
        if self._printer.error:
            self.queue.stop()
        self.queue.emit(output)

    def lose(self, reason: str) -> None:
        """The current prompt has no ranks any more: it is left out, the rest may follow."""
        for request in self.queue.lose():
            self._fail(request, reason)

    def conclude(self) -> int:
        """Logs which prompts failed. Returns the program's exit code: 0, 1 if one failed, or 128 + the signal."""
        for failure in self._failures:
            log.error("error: %s", failure)
        return 128 + self.queue.interrupted_by if self.queue.interrupted_by else int(bool(self._failures))

    def _begin(self, request: Request) -> None:
        self._current = request, Completion()
        self._printer.begin(self._prompts[request.id].shown)

    def _fail(self, request: Request, reason: str) -> None:
        self._failures.append(f"{self._prompts[request.id].where}: {reason}")


def shared_by_requests(settings: GenerateSettings) -> dict[str, Any]:
    """Arguments of all requests. Raises ValueError for settings that cannot be used, as far as they are known without
    the model."""
    stopping = Stopping(settings.max_new_tokens, settings.stop, settings.stop_token_ids, settings.ignore_eos)
    stopping.check()
    return {"stopping": stopping, "grammar": settings.grammar.read(), "trace": settings.trace is not None}


def _requests(request_builder: RequestBuilder, named: list[NamedPrompt], given: Mapping[str, Any]) -> list[Request]:
    """All requests, checked before the first is run. Raises ValueError naming the prompt that cannot be used."""
    made = []
    for number, prompt in enumerate(named):
        with naming(prompt.where):
            made.append(request_builder.build(prompt.prompt, request_id=str(number), **given))
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
    if stats.lossy:
        record["lossy"] = stats.lossy
    if completion.logprobs is not None:
        record["logprobs"] = [{"token": e.token, "logprob": e.logprob, "top": e.top} for e in completion.logprobs]
    if completion.beams is not None:
        record["beams"] = completion.beams.shown()
    return record


def output_of(settings: GenerateSettings, num_prompts: int) -> Display:
    """Shows the results as the settings say. Raises ValueError if the file for traces cannot be written."""
    shown: Display = JSONOutput(num_prompts)
    if settings.format is Format.text:
        shown = TextOutput(settings.color, settings.show_prompt)
    return TraceFile(shown, settings.trace) if settings.trace else shown


def run(settings: GenerateSettings) -> int:
    """Exit code 0, 1 if a prompt failed, or 128 + the signal that ended it early.

    Raises OSError or ValueError if the output cannot be written, unless its reader has left: that counts as SIGPIPE.
    """
    named = collect(settings)
    given = shared_by_requests(settings)  # at once, not after minutes of loading
    with running(settings) as runtime:
        if not runtime.channel.is_leader:
            return follow(runtime)
        mesh = runtime.mesh
        where = {"parallel": name_mode(mesh.axes, settings.parallel.mode), "ranks": mesh.num_ranks}
        with Printer(output_of(settings, len(named))) as printer:
            texts = Continuations(runtime.engine.request_builder, where, named, given, printer)
            signal.signal(signal.SIGINT, texts.queue.interrupt)
            signal.signal(signal.SIGTERM, texts.queue.interrupt)
            run_engine(runtime.engine, runtime.channel, texts.queue, texts.emit)
    if isinstance(printer.error, BrokenPipeError):
        return 128 + signal.SIGPIPE
    if printer.error:
        raise printer.error
    return texts.conclude()


def main() -> int:
    engine_settings.register("generate", GenerateSettings)
    return process.main("generate", GenerateSettings, run, usage=__doc__ or "")


if __name__ == "__main__":
    leave(main())
