"""A trial run: each prompt is continued twice, with the method to tune and with autoregressive steps.

The two follow each other, so that a machine that is busy for a while slows both.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from launch.data.prompt_queue import PromptQueue
from launch.data.prompts import naming
from launch.data.workloads import Problem
from launch.diagnostics.speed import Steps
from launch.sweep.measure import fit
from lp.engine.input import RequestBuilder
from lp.methods.registry import BASELINE
from lp.request import Output, Request
from lp.text.stopping import Stopping

# The ids of requests whose steps are not counted begin with this.
WARM_UP = "warm-up"


def make_requests(request_builder: RequestBuilder, problems: Sequence[Problem], stopping: Stopping) -> list[Request]:
    """Makes two requests for each prompt, with the same seed, and before them two for the first prompt, to warm up.

    stopping: its max_new_tokens must be set; prompts are cut to leave room for them. Raises ValueError that names a
    prompt that cannot be used.
    """
    assert stopping.max_new_tokens is not None
    context = request_builder.checkpoint.max_length
    tuned = request_builder.decode.method
    requests: list[Request] = []
    for name, problem in [(WARM_UP, problems[0]), *((problem.id, problem) for problem in problems)]:
        with naming(problem.where):
            tokens = fit(request_builder.encode(problem.prompt), context, stopping.max_new_tokens)
            request = request_builder.build(tokens, stopping=stopping, request_id=f"{name} {tuned}")
        plain = dataclasses.replace(request, id=f"{name} {BASELINE.method}", decode=BASELINE())
        requests += [request, plain]
    return requests


class Trial:
    """Counts the steps of the requests that its queue hands out.

    steps: the steps by the name of the method. failed: whether the model has answered with a value that is not a
    number, which ends the queue.
    """

    def __init__(self, requests: list[Request], report: Callable[[], Any]):
        """report: called at the end of each request."""
        self.queue = PromptQueue(requests, on_begin=self._begin)
        self.steps = {request.decode.method: Steps() for request in requests}
        self.failed = False
        self._report = report
        self._current: Request | None = None
        # Rows and seconds of the current request up to its last step.
        self._before = (0, 0.0)

    def emit(self, output: Output) -> None:
        """Takes what a step added to the current request."""
        assert self._current
        stats = output.stats
        if stats.steps > 1 and output.tokens and not self._current.id.startswith(WARM_UP):
            rows, seconds = self._before
            steps = self.steps[self._current.decode.method]
            steps.add(stats.rows - rows, len(output.tokens), stats.decode_s - seconds)
        self._before = stats.rows, stats.decode_s
        if output.finish_reason == "error":
            self.failed = True
            self.queue.stop()
        self.queue.emit(output)
        if output.finish_reason:
            self._report()

    def _begin(self, request: Request) -> None:
        self._current = request
