"""The server's metrics for Prometheus.

They have vLLM's names where vLLM has such a metric, so that existing dashboards work.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from launch.backend import State
from lp.request import Progress
from lp.statistics import EngineCounts, Statistics

FINISHED = {"stop": "stop", "length": "length", "cancelled": "abort", "error": "error", "no_room": "error"}
FINISHED["dead_end"] = "length"  # as replies say it
SHORT_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
LONG_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0)


@dataclass
class Clock:
    """The times at which a request arrived and last got tokens, in seconds of time.monotonic()."""

    arrived_at: float = field(default_factory=time.monotonic)
    last_at: float | None = None


class _Losses(Collector):
    """A counter whose value is kept elsewhere and read for each scrape."""

    def __init__(self, model_name: str, num_losses: Callable[[], int]):
        self._model = model_name
        self._num_losses = num_losses

    def collect(self) -> Iterator[CounterMetricFamily]:
        family = CounterMetricFamily("lookahead:rank_losses", "Ranks lost while they served", labels=["model_name"])
        family.add_metric([self._model], self._num_losses())
        yield family


class Metrics:
    """The metrics of one server, in a registry of their own. Several threads may use them."""

    def __init__(self, model_name: str):
        self.registry = CollectorRegistry()
        self._model = model_name
        self._prompt_tokens = self._counter("vllm:prompt_tokens", "Prompt tokens processed")
        self._cache_queries = self._counter("vllm:prefix_cache_queries", "Prompt tokens that could have been cached")
        self._cache_hits = self._counter("vllm:prefix_cache_hits", "Prompt tokens that were cached")
        self._generation_tokens = self._counter("vllm:generation_tokens", "Tokens generated")
        self._finished = self._counters("vllm:request_success", "Requests that have ended", "finished_reason")
        self._first_token = self._histogram("vllm:time_to_first_token_seconds", "From arrival to first token", LONG_S)
        self._per_token = self._histogram("vllm:time_per_output_token_seconds", "A step's time by its tokens", SHORT_S)
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

    def watch(self, num_running: Callable[[], int], num_waiting: Callable[[], int]) -> None:
        """Adds the gauges of requests. They call these functions for their values."""
        self._gauge("vllm:num_requests_running", "Requests in the engine", num_running)
        self._gauge("vllm:num_requests_waiting", "Requests that wait for a place", num_waiting)

    def watch_ranks(self, status: Callable[[], dict[str, Any]], num_losses: Callable[[], int]) -> None:
        """Adds the metrics of ranks. They call these functions for their values; see `Backend`."""
        self._gauge("lookahead:epoch", "Number of the epoch at hand", lambda: status()["epoch"] or 0)
        self._gauge("lookahead:divided", "1 while each rank serves requests of its own", lambda: status()["divided"])
        self.registry.register(_Losses(self._model, num_losses))
        ranks = Gauge("lookahead:ranks", "Ranks by state", ["model_name", "state"], registry=self.registry)
        for state in State:
            ranks.labels(self._model, state).set_function(
                lambda state=state: sum(rank["state"] == state for rank in status()["ranks"])
            )

    def observe(self, progress: Progress, clock: Clock) -> None:
        """Counts what a step added to a request."""
        now = time.monotonic()
        if progress.engine:
            self._count_steps(progress.engine)
        if progress.tokens:
            self._count_tokens(progress, clock, now)
        if progress.finish_reason:
            self._finished.labels(self._model, FINISHED[progress.finish_reason]).inc()
            self._end_to_end.observe(now - clock.arrived_at)
            self._count_drafts(progress.stats)

    def render(self) -> bytes:
        """Returns all metrics in Prometheus' text format."""
        return generate_latest(self.registry)

    def _count_tokens(self, progress: Progress, clock: Clock, now: float) -> None:
        if clock.last_at is None:
            self._first_token.observe(now - clock.arrived_at)
            self._prompt_tokens.inc(progress.stats.prompt_tokens)
            self._cache_queries.inc(progress.stats.prompt_tokens)
            self._cache_hits.inc(progress.stats.cached_tokens)
        else:
            self._per_token.observe((now - clock.last_at) / len(progress.tokens))
        clock.last_at = now
        self._generation_tokens.inc(len(progress.tokens))

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
            self._proposed_by.labels(self._model, source).inc(count)
        for source, count in stats.accepted.items():
            self._accepted_by.labels(self._model, source).inc(count)
        for length, count in stats.accepted_lengths.items():
            for position in range(length - 1):
                self._by_position.labels(self._model, str(position)).inc(count)

    def _counter(self, name: str, help_text: str) -> Counter:
        return Counter(name, help_text, ["model_name"], registry=self.registry).labels(self._model)

    def _counters(self, name: str, help_text: str, label: str) -> Counter:
        return Counter(name, help_text, ["model_name", label], registry=self.registry)

    def _histogram(self, name: str, help_text: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(name, help_text, ["model_name"], buckets=buckets, registry=self.registry).labels(self._model)

    def _gauge(self, name: str, help_text: str, ask: Callable[[], int]) -> None:
        Gauge(name, help_text, ["model_name"], registry=self.registry).labels(self._model).set_function(ask)
