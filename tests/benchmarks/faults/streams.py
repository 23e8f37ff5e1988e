"""Streams made by hand, for tests of what their clients see."""

from __future__ import annotations

from benchmarks.faults.observed_stream import ObservedStream


def streamed(*times: float, text: str = "abc", error: str | None = None) -> ObservedStream:
    """A stream that was sent at 0 and had events at these times."""
    return ObservedStream(
        0.0, [*times], text, [], len(text), None if error else "length", error, times[-1] if times else 0.0
    )
