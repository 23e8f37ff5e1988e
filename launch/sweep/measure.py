"""Measures this project's runtime on a workload, as one of its ranks.

Rank 0 submits the first prompt to warm up, then all prompts, `concurrency` at a time. Every rank sees the same outputs
at the same steps, so each knows without a message when the measured part begins and ends.
"""

from __future__ import annotations

import dataclasses
import hashlib
import resource
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from launch.config.runtime import Runtime, running
from launch.data import workloads
from launch.data.prompt_queue import PromptQueue
from launch.data.workloads import Problem
from launch.sweep.records import RankFigures, TextRecord
from launch.sweep.settings import BenchSettings
from lp.request import Completion, Output, Request
from lp.text.stopping import Stopping
from parallel.groups.worker import run_engine


@dataclass
class Outcome:
    """The outcome of a measurement on one rank.

    figures: those of this rank; the other fields are about all texts. accepted_lengths: number of steps by the number
    of tokens that they yielded. rows: rows of the trees of all steps. seconds: time from the start of the first prompt
    to the end of the last text.
    """

    figures: RankFigures
    texts: list[TextRecord] = field(default_factory=list)
    accepted_lengths: Counter[int] = field(default_factory=Counter)
    rows: int = 0
    seconds: float = 0.0

    def of_texts(self) -> dict[str, Any]:
        """Returns all but the rank's figures, as JSON values under the names of Run's fields."""
        return {
            "texts": [dataclasses.asdict(text) for text in self.texts],
            "accepted_lengths": {str(length): count for length, count in sorted(self.accepted_lengths.items())},
            "rows": self.rows,
            "seconds": self.seconds,
        }


def digest(tokens: Sequence[int]) -> str:
    """Returns a digest that is equal for equal token ids."""
    return hashlib.sha256(repr(list(tokens)).encode()).hexdigest()[:16]


def peak_bytes(device: torch.device) -> int:
    """Returns the largest allocation so far on a GPU; on a CPU, the largest resident set of the process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    try:
        with open("/proc/self/status", encoding="ascii") as lines:  # getrusage would include the parent process
            return next(1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
    except (OSError, StopIteration):
        return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def fit(tokens: list[int], context: int, max_new_tokens: int) -> list[int]:
    """Returns the prompt's last tokens, so many that the new ones fit. Raises ValueError if there is no room."""
    room = context - max_new_tokens
    if room < 1:
        raise ValueError(
            f"workload.max_new_tokens={max_new_tokens} leaves no room for a prompt in a context of {context} tokens"
        )
    return tokens[-room:]


WARM_UP = "warm-up"


def run(settings: BenchSettings) -> Outcome:
    """Measures as one rank. Raises ValueError for settings that cannot be used, RankLost if a rank is lost."""
    problems = workloads.load(settings.workload)
    with running(settings) as runtime:
        meter = Meter(runtime)
        queue = _queue(runtime, settings, problems) if runtime.channel.is_leader else None

        def emit(output: Output) -> None:
            meter.emit(output)
            if queue:
                queue.emit(output)

        run_engine(runtime.engine, runtime.channel, queue, emit)
        return meter.outcome([problem.id for problem in problems])


class Meter:
    """Takes a rank's figures from the outputs of all requests."""

    def __init__(self, runtime: Runtime):
        self.runtime = runtime
        self.completions: dict[str, Completion] = {}
        self.cache_bytes = 0
        self.begin = self.end = time.perf_counter()
        self.traffic = runtime.traffic

    def emit(self, output: Output) -> None:
        if output.finish_reason == "error":
            raise ValueError("the model answered with something that is not a number (NaN); try model.dtype=float32")
        self.cache_bytes = max(self.cache_bytes, self.runtime.engine.runner.cache_bytes)
        self.completions.setdefault(output.request_id, Completion()).extend(output)
        self.end = time.perf_counter()
        if output.request_id == WARM_UP and output.finish_reason:
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
