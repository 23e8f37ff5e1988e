"""Measures this project's runtime on a workload, as one of its ranks.

Rank 0 submits the first prompt to warm up, then all prompts, `concurrency` at a time. Every rank sees the same progress
at the same steps, so each knows without a message when the measured part begins and ends.
"""

from __future__ import annotations

import time
from collections import Counter

from launch.program.runtime import Runtime, running
from launch.prompts import workloads
from launch.prompts.queue import PromptQueue
from launch.prompts.workloads import Problem
from launch.sweep.outcome import Outcome, digest, fit, peak_bytes
from launch.sweep.records import RankFigures, TextRecord
from launch.sweep.settings import BenchSettings
from lp.request import Completion, Output, Request
from lp.text.stopping import Stopping
from parallel.group import loop

WARM_UP = "warm-up"


def run(settings: BenchSettings) -> Outcome:
    """Measures as one rank. Raises ValueError for settings that cannot be used, RankLost if a rank is lost."""
    problems = workloads.load(settings.workload)
    with running(settings) as runtime:
        meter = Meter(runtime)
        queue = _queue(runtime, settings, problems) if runtime.channel.is_leader else None

        def emit(progress: Output) -> None:
            meter.emit(progress)
            if queue:
                queue.emit(progress)

        loop.serve(runtime.engine, runtime.channel, queue, emit)
        return meter.outcome([problem.id for problem in problems])


class Meter:
    """Takes a rank's figures from the progress of all requests."""

    def __init__(self, runtime: Runtime):
        self.runtime = runtime
        self.completions: dict[str, Completion] = {}
        self.cache_bytes = 0
        self.begin = self.end = time.perf_counter()
        self.traffic = runtime.traffic

    def emit(self, progress: Output) -> None:
        if progress.finish_reason == "error":
            raise ValueError("the model answered with something that is not a number (NaN); try model.dtype=float32")
        self.cache_bytes = max(self.cache_bytes, self.runtime.engine.runner.cache_bytes)
        self.completions.setdefault(progress.request_id, Completion()).extend(progress)
        self.end = time.perf_counter()
        if progress.request_id == WARM_UP and progress.finish_reason:
            self.begin = time.perf_counter()
            self.traffic = self.runtime.traffic

    def outcome(self, ids: list[str]) -> Outcome:
        runtime = self.runtime
        traffic = runtime.traffic - self.traffic
        device = runtime.mesh.device
        figures = RankFigures(
            rank=runtime.mesh.rank,
            device=str(device),
            weight_bytes=runtime.engine.checkpoint.model.weight_bytes,
            cache_bytes=self.cache_bytes,
            peak_bytes=peak_bytes(device),
            num_collectives=traffic.num_collectives,
            bytes_sent=traffic.bytes_sent,
            communication_s=traffic.seconds,
        )
        finished = [self.completions[str(number)] for number in range(len(ids))]
        return Outcome(
            figures,
            [_text(name, completion) for name, completion in zip(ids, finished, strict=True)],
            sum((completion.stats.accepted_lengths for completion in finished), Counter()),
            sum(completion.stats.rows for completion in finished),
            self.end - self.begin,
        )


def _text(name: str, completion: Completion) -> TextRecord:
    stats = completion.stats
    return TextRecord(
        id=name,
        prompt_tokens=stats.prompt_tokens,
        tokens=stats.tokens,
        steps=stats.steps,
        ttft_s=stats.ttft_s,
        decode_s=stats.decode_s,
        digest=digest(completion.token_ids),
    )


def _queue(runtime: Runtime, settings: BenchSettings, problems: list[Problem]) -> PromptQueue:
    """Makes the inbox of rank 0: the warm-up, then the prompts. Raises ValueError for a prompt that cannot be used."""
    request_builder = runtime.engine.request_builder
    stopping = Stopping(settings.workload.max_new_tokens, ignore_eos=settings.ignore_eos)
    context = runtime.engine.checkpoint.max_length

    def request(problem: Problem, name: str) -> Request:
        tokens = fit(request_builder.encode(problem.prompt), context, settings.workload.max_new_tokens)
        return request_builder.build(tokens, stopping=stopping, request_id=name)

    requests = [request(problem, str(number)) for number, problem in enumerate(problems)]
    return PromptQueue(requests, settings.concurrency, warm_up=request(problems[0], WARM_UP))
