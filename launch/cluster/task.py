"""What a front end does for its driver: serve HTTP, or continue prompts."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

from launch.cluster.front_end import Event, Task
from launch.cluster.group import open_group
from launch.cluster.program_settings import RayGenerateSettings, RayServeSettings
from launch.generate import PromptFeed
from launch.output.printer import Printer
from launch.program.settings_json import from_json_values
from launch.prompts.collect import NamedPrompt
from launch.server.run import Server, bind
from launch.sweep.points import mode_of, num_ranks
from lp.engine import NOT_A_NUMBER
from lp.request import Completion, Progress
from parallel.group.loop import Command

log = logging.getLogger("lookahead")


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
        self._inbox: GroupFeed | None = None

    def run(self, show: Callable[[Event], None]) -> int:
        parallel = self._settings.parallel
        ranks = num_ranks(parallel)
        backend = open_group(self._settings)
        with Printer(Relay(show)) as printer:
            where = {"parallel": mode_of(parallel, ranks), "ranks": ranks}
            feed = PromptFeed(backend.request_builder, where, self._named, self._settings, printer)
            self._inbox = GroupFeed(feed)
            backend.run(self._inbox, self._inbox.emit, self._inbox.lose)
        for prompt in feed.failed:
            log.error("error: %s: %s", prompt.where, self._inbox.reasons.get(prompt.id, NOT_A_NUMBER))
        return 128 + feed.interrupted_by if feed.interrupted_by else int(bool(feed.failed))

    def interrupt(self, number: int) -> bool:
        if not self._inbox:
            return False
        self._inbox.interrupt(number)
        return True


class GroupFeed:
    """A PromptFeed for a supervisor, which asks it all the time and from another thread than it tells of progress.

    reasons: why prompts were lost, by id.
    """

    def __init__(self, feed: PromptFeed):
        self.reasons: dict[str, str] = {}
        self._feed = feed
        self._changed = threading.Condition()
        self._is_cancelling = False

    def take(self, wait_s: float) -> list[Command]:
        with self._changed:
            self._changed.wait_for(self.has_waiting, wait_s)
            if not self.has_waiting():
                return []
            self._is_cancelling = self._feed.current is not None
            return self._feed.take(0.0)

    def has_waiting(self) -> bool:
        return self._feed.current is None or (self._feed.has_waiting() and not self._is_cancelling)

    def emit(self, progress: Progress) -> None:
        with self._changed:
            self._feed.emit(progress)
            self._changed.notify_all()

    def lose(self, message: str) -> None:
        """The prompt at hand has no ranks any more."""
        with self._changed:
            if self._feed.current:
                prompt, _, _ = self._feed.current
                self.reasons[prompt.id] = message
                self._feed.failed.append(prompt)
                self._feed.current = None
            self._changed.notify_all()

    def interrupt(self, number: int) -> None:
        with self._changed:
            self._feed.interrupt(number)
            self._changed.notify_all()


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
