"""The server's metrics for Prometheus.

They have vLLM's names where vLLM has such a metric, so that existing dashboards work.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from launch.backend import State
from lp.request import Output
from lp.statistics import EngineCounts, Statistics
from lp.step_cost import StepTimes
from lp.text.stopping import REFUSALS

FINISHED = {"stop": "stop", "length": "length", "cancelled": "abort", "error": "error"}
FINISHED |= dict.fromkeys(REFUSALS, "error")
FINISHED["dead_end"] = "length"  # as replies say it
# Seconds of a token and of a request. A small model takes 0.2 ms for a token and a few for a request.
SHORT_S = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0,
    2.5, 5.0, 10.0,
)  # fmt: skip
LONG_S = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0,
    2560.0,
)  # fmt: skip
NUM_TOKENS = tuple(digit * 10**power for power in range(7) for digit in (1, 2, 5))
# Rows of the step times that are shown.
SHOWN_ROWS = (1, 4, 16, 64)
# vLLM tells its engines apart by this label; a server here has one.
ENGINE = "0"


@dataclass
class Clock:
    """The times at which a request arrived, was handed to the engine, and got its first and last tokens so far.

    In seconds of time.monotonic().
    """

    arrived_at: float = field(default_factory=time.monotonic)
    started_at: float | None = None
    first_at: float | None = None
    last_at: float | None = None

    def start(self) -> None:
        """The request is handed to the engine. It may be handed over again, which changes nothing."""
        self.started_at = self.started_at or time.monotonic()


class _Losses(Collector):
    """A counter whose value is kept elsewhere and read for each scrape."""

    def __init__(self, labels: dict[str, str], num_losses: Callable[[], int]):
        self._labels = labels
        self._num_losses = num_losses

    def collect(self) -> Iterator[CounterMetricFamily]:
        family = CounterMetricFamily("lookahead:rank_losses", "Ranks lost while they served", labels=[*self._labels])
        family.add_metric([*self._labels.values()], self._num_losses())
        yield family


class Metrics:
    """The metrics of one server, in a registry of their own. Several threads may use them."""

    def __init__(self, model_name: str):
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self._labels = {"model_name": model_name, "engine": ENGINE}
        self._prompt_tokens = self._counter("vllm:prompt_tokens", "Prompt tokens processed")
        self._cache_queries = self._counter("vllm:prefix_cache_queries", "Prompt tokens that could have been cached")
        self._cache_hits = self._counter("vllm:prefix_cache_hits", "Prompt tokens that were cached")
        self._generation_tokens = self._counter("vllm:generation_tokens", "Tokens generated")
        self._finished = self._counters("vllm:request_success", "Requests that have ended", "finished_reason")
        self._first_token = self._histogram("vllm:time_to_first_token_seconds", "From arrival to first token", LONG_S)
        self._per_token = self._histogram("vllm:time_per_output_token_seconds", "A step's time by its tokens", SHORT_S)
        self._between = self._histogram("vllm:inter_token_latency_seconds", "Between two steps of a request", SHORT_S)
        self._queued = self._histogram("vllm:request_queue_time_seconds", "From arrival to the engine", LONG_S)
        self._prefill = self._histogram("vllm:request_prefill_time_seconds", "From the engine to first token", LONG_S)
        self._decode = self._histogram("vllm:request_decode_time_seconds", "From first to last token", LONG_S)
        self._inference = self._histogram("vllm:request_inference_time_seconds", "From the engine to the end", LONG_S)
        self._prompts = self._histogram("vllm:request_prompt_tokens", "Prompt tokens of a request", NUM_TOKENS)
        self._answers = self._histogram("vllm:request_generation_tokens", "Tokens generated for a request", NUM_TOKENS)
        self._refused = self._counters("lookahead:requests_refused", "Requests answered with an error", "reason")
        self._end_to_end = self._histogram("vllm:e2e_request_latency_seconds", "From arrival to the end", LONG_S)
        self._drafts = self._counter("vllm:spec_decode_num_drafts", "Steps of requests that draft")
        self._proposed = self._counter("vllm:spec_decode_num_draft_tokens", "Draft tokens verified")
        self._accepted = self._counter("vllm:spec_decode_num_accepted_tokens", "Draft tokens accepted")
        self._by_position = self._counters(
            "vllm:spec_decode_num_accepted_tokens_per_pos", "Draft tokens accepted, by position in the step", "position"
        )
        self._steps = self._counter("lookahead:steps", "Decoding steps")
        self._rows = self._counter("lookahead:rows", "Tree rows computed, the prompt's not counted")
        self._engine_steps = self._counter("lookahead:engine_steps", "Forwards, each for one request or more")
        self._engine_rows = self._counter("lookahead:engine_rows", "Rows of all forwards, the prompts' included")
        self._engine_sequences = self._counter("lookahead:engine_sequences", "Requests that took part in a forward")
        self._expected = self._counter("lookahead:expected_tokens", "Tokens that trees were expected to yield")
        self._preemptions = self._counter("vllm:num_preemptions", "Requests that lost their room to earlier ones")
        self._proposed_by = self._counters("lookahead:draft_tokens", "Draft tokens verified, by source", "source")
        self._accepted_by = self._counters("lookahead:accepted_tokens", "Draft tokens accepted, by source", "source")
        self._lossy = self._counters("lookahead:lossy_tokens", "Tokens of lossy texts, not the model's own", "verify")

    def watch(
        self, num_running: Callable[[], int], num_waiting: Callable[[], int], kv_usage: Callable[[], float]
    ) -> None:
        """Adds the gauges of requests. They call these functions for their values. kv_usage: from 0 to 1."""
        self._gauge("vllm:num_requests_running", "Requests in the engine", num_running)
        self._gauge("vllm:num_requests_waiting", "Requests that wait for a place", num_waiting)
        self._gauge("vllm:kv_cache_usage_perc", "Share of the room for keys and values that is in use", kv_usage)

    def watch_ranks(self, status: Callable[[], dict[str, Any]], num_losses: Callable[[], int]) -> None:
        """Adds the metrics of ranks. They call these functions for their values; see `Backend`."""
        self._gauge("lookahead:epoch", "Number of the epoch at hand", lambda: status()["epoch"] or 0)
        self._gauge("lookahead:divided", "1 while each rank serves requests of its own", lambda: status()["divided"])
        self.registry.register(_Losses(self._labels, num_losses))
        ranks = Gauge("lookahead:ranks", "Ranks by state", [*self._labels, "state"], registry=self.registry)
        for state in State:
            ranks.labels(**self._labels, state=state).set_function(
                lambda state=state: sum(rank["state"] == state for rank in status()["ranks"])
            )

    def watch_step_times(self, step_times: Callable[[], StepTimes | None]) -> None:
        """Adds the gauges of the step-time curve."""

        def gauge(name: str, help_text: str, ask: Callable[[StepTimes], float]) -> None:
            self._gauge(name, help_text, lambda: math.nan if (times := step_times()) is None else ask(times))

        gauge("lookahead:step_times_steps", "Served steps that the step times rest on", lambda one: one.num_steps)
        gauge("lookahead:step_times_learnt_seconds", "When step times were learnt last", lambda one: one.learnt_at)
        gauge("lookahead:step_load", "Factor by which steps took longer lately", lambda one: one.load)
        by_rows = Gauge(
            "lookahead:step_seconds", "Seconds of a step by its rows", [*self._labels, "rows"], registry=self.registry
        )
        for rows in SHOWN_ROWS:
            by_rows.labels(**self._labels, rows=rows).set_function(
                lambda rows=rows: math.nan if (times := step_times()) is None else times.at(rows)
            )

    def observe(self, output: Output, clock: Clock) -> None:
        """Counts what a step added to a request."""
        now = time.monotonic()
        if output.engine:
            self._count_steps(output.engine)
        if output.tokens:
            self._count_tokens(output, clock, now)
        if output.finish_reason:
            self._finished(FINISHED[output.finish_reason]).inc()
            self._end_to_end.observe(now - clock.arrived_at)
            self._count_request(output.stats, clock)
            self._count_drafts(output.stats)

    def count_refused(self, reason: str) -> None:
        """Counts a request that is answered with an error. reason: the error's code."""
        self._refused(reason).inc()

    def render(self) -> bytes:
        """Returns all metrics in Prometheus' text format."""
        return generate_latest(self.registry)

    def _count_tokens(self, output: Output, clock: Clock, now: float) -> None:
        if clock.last_at is None:
            clock.first_at = now
            self._first_token.observe(now - clock.arrived_at)
            self._prompt_tokens.inc(output.stats.prompt_tokens)
            self._cache_queries.inc(output.stats.prompt_tokens)
            self._cache_hits.inc(output.stats.cached_tokens)
        else:
            self._between.observe(now - clock.last_at)
            self._per_token.observe((now - clock.last_at) / len(output.tokens))
        clock.last_at = now
        self._generation_tokens.inc(len(output.tokens))

    def _count_request(self, stats: Statistics, clock: Clock) -> None:
        """Counts a request that has ended; one that never reached the engine, or its first token, has fewer figures."""
        self._prompts.observe(stats.prompt_tokens)
        self._answers.observe(stats.tokens)
        if stats.lossy:
            self._lossy(stats.lossy).inc(stats.tokens)
        if clock.started_at is not None:
            self._queued.observe(clock.started_at - clock.arrived_at)
            if clock.first_at is not None and clock.last_at is not None:
                self._prefill.observe(clock.first_at - clock.started_at)
                self._decode.observe(clock.last_at - clock.first_at)
                self._inference.observe(clock.last_at - clock.started_at)

    def _count_steps(self, counts: EngineCounts) -> None:
        self._engine_steps.inc(counts.steps)
        self._engine_rows.inc(counts.rows)
        self._engine_sequences.inc(counts.sequences)
        self._expected.inc(counts.expected)
        self._preemptions.inc(counts.preemptions)

    def _count_drafts(self, stats: Statistics) -> None:
        self._steps.inc(stats.steps)
        self._rows.inc(stats.rows)
        self._drafts.inc(stats.steps if stats.proposed.total() else 0)
        self._proposed.inc(stats.proposed.total())
        self._accepted.inc(stats.accepted.total())
        for source, count in stats.proposed.items():
            self._proposed_by(source).inc(count)
        for source, count in stats.accepted.items():
            self._accepted_by(source).inc(count)
        for length, count in stats.accepted_lengths.items():
            for position in range(length - 1):
                self._by_position(str(position)).inc(count)

    def _counter(self, name: str, help_text: str) -> Counter:
        return Counter(name, help_text, [*self._labels], registry=self.registry).labels(**self._labels)

    def _counters(self, name: str, help_text: str, label: str) -> Callable[[str], Counter]:
        """Makes a counter for each value of a label, and returns the function that finds it."""
        family = Counter(name, help_text, [*self._labels, label], registry=self.registry)
        return lambda value: family.labels(**self._labels, **{label: value})

    def _histogram(self, name: str, help_text: str, buckets: tuple[float, ...]) -> Histogram:
        family = Histogram(name, help_text, [*self._labels], buckets=buckets, registry=self.registry)
        return family.labels(**self._labels)

    def _gauge(self, name: str, help_text: str, ask: Callable[[], float]) -> None:
        Gauge(name, help_text, [*self._labels], registry=self.registry).labels(**self._labels).set_function(ask)
