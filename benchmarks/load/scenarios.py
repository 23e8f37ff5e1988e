"""What is measured: closed loops, open loops, a trace, a burst, and a long prompt that arrives beside a stream.

A scenario is made anew for every round, with other prompts, and is the same for all systems of the round.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.load.arrivals import Arrival, poisson_times
from benchmarks.load.prompts import LoadRequest, PromptDeck

# In a pause scenario: tries in a round, tokens of the stream and of the long prompt's answer, and the pieces of text
# that the stream must have got before the prompt is sent.
PAUSE_TRIES = 3
STREAM_TOKENS = 1024
INTRUDER_TOKENS = 8
PIECES_BEFORE = 16
# Requests of a stream before, in and after a burst.
ALONE_REQUESTS = 4


@dataclass(frozen=True)
class ClosedLoop:
    """`num_streams` clients, each of which sends its next request when its last has ended."""

    requests: Sequence[LoadRequest]
    num_streams: int


@dataclass(frozen=True)
class OpenLoop:
    """Requests that are sent at given seconds after the start, whether earlier ones have ended or not."""

    requests: Sequence[LoadRequest]
    due_s: Sequence[float]


@dataclass(frozen=True)
class Intrusion:
    """A request that is sent after another has got `after` pieces of text."""

    stream: LoadRequest
    intruder: LoadRequest
    after: int

    @property
    def requests(self) -> Sequence[LoadRequest]:
        return [self.stream, self.intruder]


Phase = ClosedLoop | OpenLoop | Intrusion


@dataclass(frozen=True)
class Scenario:
    """Phases, one after the other. kind: what `load` is a number of: streams, or requests a second; None has none."""

    name: str
    phases: dict[str, Phase]
    kind: str
    load: float | None = None

    @property
    def requests(self) -> list[LoadRequest]:
        return [request for phase in self.phases.values() for request in phase.requests]

    @property
    def most_streams(self) -> int:
        """Requests that may be under way at the same time."""
        phases = self.phases.values()
        return max(phase.num_streams if isinstance(phase, ClosedLoop) else len(phase.requests) for phase in phases)


@dataclass(frozen=True)
class Plan:
    """Which scenarios are measured; see the command's options. trace: empty if there is none.

    pause: tokens of the long prompt; None measures no pause.
    """

    streams: Sequence[int] = ()
    rates: Sequence[float] = ()
    trace: Sequence[Arrival] = ()
    burst: tuple[int, int, int] | None = None
    pause: int | None = None
    num_requests: int = 16
    max_new_tokens: int = 64

    def make(self, deck: PromptDeck, seed: int) -> list[Scenario]:
        """The scenarios of one round. seed: of the arrivals."""
        found = [self._closed(deck, number) for number in self.streams]
        found += [self._open(deck, rate, seed) for rate in self.rates]
        if self.trace:
            found.append(self._replay(deck))
        if self.burst:
            found.append(self._burst(deck, self.burst))
        if self.pause:
            found.append(self._pause(deck, self.pause))
        return found

    def _closed(self, deck: PromptDeck, streams: int) -> Scenario:
        requests = deck.draw_many(max(self.num_requests, 2 * streams), self.max_new_tokens)
        name = f"closed loop, {streams} stream{'s' if streams > 1 else ''}"
        return Scenario(name, {"all": ClosedLoop(requests, streams)}, "streams", streams)

    def _open(self, deck: PromptDeck, rate: float, seed: int) -> Scenario:
        requests = deck.draw_many(self.num_requests, self.max_new_tokens)
        due_s = poisson_times(rate, self.num_requests, seed)
        return Scenario(f"open loop, {rate:g} requests/s", {"all": OpenLoop(requests, due_s)}, "requests/s", rate)

    def _replay(self, deck: PromptDeck) -> Scenario:
        requests = [deck.draw_of_length(one.input_length, one.output_length) for one in self.trace]
        return Scenario("trace", {"all": OpenLoop(requests, [one.at_s for one in self.trace])}, "trace")

    def _burst(self, deck: PromptDeck, streams: tuple[int, int, int]) -> Scenario:
        names = ("before", "burst", "after")
        phases: dict[str, Phase] = {}
        for name, number in zip(names, streams, strict=True):
            requests = deck.draw_many(max(ALONE_REQUESTS, number), self.max_new_tokens)
            phases[name] = ClosedLoop(requests, number)
        return Scenario(f"burst, {', '.join(map(str, streams))} streams", phases, "burst")

    def _pause(self, deck: PromptDeck, num_tokens: int) -> Scenario:
        phases: dict[str, Phase] = {}
        for number in range(1, PAUSE_TRIES + 1):
            intruder = deck.draw_of_length(num_tokens, INTRUDER_TOKENS)
            phases[f"try {number}"] = Intrusion(deck.draw(STREAM_TOKENS), intruder, PIECES_BEFORE)
        return Scenario(f"a prompt of {num_tokens:,} tokens beside a stream", phases, "pause")
