"""What a front end does for its driver: serve HTTP, or continue prompts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from launch.cluster.front_end import Event, Task
from launch.cluster.group import open_group
from launch.cluster.program_settings import RayGenerateSettings, RayServeSettings
from launch.generate import Continuations
from launch.output.printer import Printer
from launch.program.settings_json import from_json_values
from launch.prompts.collect import NamedPrompt
from launch.prompts.queue import PromptQueue
from launch.server.run import Server, bind
from launch.sweep.points import mode_of, num_ranks
from lp.request import Completion, Progress


def make(kind: str, order: dict[str, Any]) -> Task:
    """order: {"settings": ..., "prompts": of generate, as lists of a NamedPrompt's fields}."""
    if kind == "serve":
        return ServeTask(from_json_values(order["settings"], RayServeSettings))
    named = [NamedPrompt(*prompt) for prompt in order["prompts"]]
    return GenerateTask(from_json_values(order["settings"], RayGenerateSettings), named)


class ServeTask:
    """HTTP until it is interrupted; then requests get `server.drain_s` to finish, and a second signal ends them."""

    def __init__(self, settings: RayServeSettings):
        self._settings = settings
        self._server: Server | None = None
        self._signals: list[int] = []

    def run(self, show: Callable[[Event], None]) -> int:
        listener = bind(self._settings.server)  # a busy port is said before anything is reserved
        try:
            backend = open_group(self._settings)
        except BaseException:
            listener.close()
            raise
        self._server = Server(backend, self._settings.server, listener)
        code = self._server.run()
        return 128 + self._signals[1] if len(self._signals) > 1 else code

    def interrupt(self, number: int) -> bool:
        if not self._server:
            return False
        self._signals.append(number)
        self._server.stop(within_s=0 if len(self._signals) > 1 else None)
        return True


class GenerateTask:
    """One prompt after another. A prompt whose ranks are all lost is left out; the rest follow if they come back."""

    def __init__(self, settings: RayGenerateSettings, named: list[NamedPrompt]):
        self._settings = settings
        self._named = named
        self._queue: PromptQueue | None = None

    def run(self, show: Callable[[Event], None]) -> int:
        parallel = self._settings.parallel
        ranks = num_ranks(parallel)
        backend = open_group(self._settings)
        with Printer(Relay(show)) as printer:
            where = {"parallel": mode_of(parallel, ranks), "ranks": ranks}
            texts = Continuations(backend.request_builder, where, self._named, self._settings, printer)
            self._queue = texts.queue
            backend.run(texts.queue, texts.emit, texts.lose)
        return texts.conclude()

    def interrupt(self, number: int) -> bool:
        if not self._queue:
            return False
        self._queue.interrupt(number)
        return True


class Relay:
    """An Output that hands on to the driver, who shows it."""

    def __init__(self, show: Callable[[Event], None]):
        self._show = show

    def begin(self, prompt: str) -> None:
        self._show({"begin": prompt})

    def progress(self, progress: Progress) -> None:
        self._show({"progress": progress.to_dict()})

    def end(self, completion: Completion, record: dict[str, Any]) -> None:
        self._show({"end": record})
