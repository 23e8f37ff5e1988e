"""A trial run: each prompt is continued twice, as decode=auto does and by autoregressive steps, one after the other, so
that a machine that is busy for a while slows both.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from launch.prompts.workloads import Problem
from launch.sweep.outcome import fit
from launch.tuning.predicted_speed import Steps
from lp.methods import Auto, Autoregressive
from lp.request import Progress, Request
from lp.request_builder import RequestBuilder
from lp.text.stopping import Stopping
from parallel.group.loop import Command, Inbox

WARM_UP = "warm-up"
"""How the ids of requests begin whose steps do not count."""


def make_requests(request_builder: RequestBuilder, problems: Sequence[Problem], stopping: Stopping) -> list[Request]:
    """Two of each prompt, with one seed, and two of the first prompt before them. Raises ValueError naming the prompt
    that cannot be used.

    stopping: with max_new_tokens; prompts are cut to leave room for them.
    """
    assert stopping.max_new_tokens is not None
    context = request_builder.checkpoint.max_length
    requests: list[Request] = []
    for name, problem in [(WARM_UP, problems[0]), *((problem.id, problem) for problem in problems)]:
        try:
            tokens = fit(request_builder.encode(problem.prompt), context, stopping.max_new_tokens)
            request = request_builder.build(tokens, stopping=stopping, request_id=f"{name} {Auto.method}")
        except ValueError as error:
            raise ValueError(f"{problem.where}: {error}") from None
        plain = dataclasses.replace(request, id=f"{name} {Autoregressive.method}", decode=Autoregressive())
        requests += [request, plain]
    return requests


class Trial(Inbox):
    """Rank 0's inbox: one request after another, then shutdown. A signal, or an answer that is not a number, ends it.

    steps: by decoding method.
    """

    def __init__(self, requests: list[Request], report: Callable[[], Any]):
        """report: called at the end of each request."""
        self.steps = {Auto.method: Steps(), Autoregressive.method: Steps()}
        self.interrupted_by: int | None = None
        self.failed = False
        self._report = report
        self._waiting = requests[::-1]
        self._current: Request | None = None
        self._before = (0, 0.0)
        """Rows and seconds of the current request up to its last step."""

    def interrupt(self, signal_number: int, frame: Any = None) -> None:
        """A signal handler."""
        self.interrupted_by = signal_number

    def has_waiting(self) -> bool:
        return self.interrupted_by is not None

    def take(self, wait_s: float) -> list[Command]:
        if self._current:
            return [{"cancel": self._current.id}]
        if self.has_waiting() or self.failed or not self._waiting:
            return [{"shutdown": True}]
        self._current = self._waiting.pop()
        return [{"submit": self._current.to_dict()}]

    def emit(self, progress: Progress) -> None:
        assert self._current
        stats = progress.stats
        if stats.steps > 1 and progress.tokens and not self._current.id.startswith(WARM_UP):
            rows, seconds = self._before
            steps = self.steps[self._current.decode.method]
            steps.add(stats.rows - rows, len(progress.tokens), stats.decode_s - seconds)
        self._before = stats.rows, stats.decode_s
        if progress.finish_reason:
            self.failed = progress.finish_reason == "error"
            self._current = None
            self._report()
