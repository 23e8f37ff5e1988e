"""Streams as their clients see them: gaps, completeness, equality."""

from __future__ import annotations

import pytest

from benchmarks.faults.observed_stream import ObservedStream, gap_s
from tests.benchmarks.faults.streams import streamed


def chunk(text: str, finish_reason: str | None = None, **more):
    return {"choices": [{"text": text, "logprobs": None, "finish_reason": finish_reason}], **more}


def test_the_gap_is_the_longest_wait_after_the_kill_less_the_usual_one() -> None:
    undisturbed = streamed(1.0, 1.1, 1.2, 1.3)
    disturbed = streamed(1.0, 1.6, 1.7, 2.2, 2.3)
    assert gap_s(disturbed, undisturbed, at=1.65) == pytest.approx(0.4)  # 0.5 s, of which 0.1 are usual
    assert gap_s(disturbed, undisturbed, at=1.5) == pytest.approx(0.5)  # the wait in which the kill falls counts
    assert gap_s(disturbed, undisturbed, at=2.25) == pytest.approx(0.0)
    assert gap_s(disturbed, undisturbed, at=9.0) == 0.0


def test_the_gap_of_a_kill_in_the_prefill_is_what_the_first_event_is_late() -> None:
    assert gap_s(streamed(1.7, 1.8), streamed(1.0, 1.1), at=0.5) == pytest.approx(0.7)


def test_a_stream_is_the_same_only_if_whole_and_equal_in_all() -> None:
    good = streamed(1.0, 2.0)
    assert good.says_the_same(streamed(1.0, 5.0))
    assert not good.says_the_same(streamed(1.0, text="abcc"))
    assert not good.says_the_same(streamed(1.0, error="a rank is lost"))
    assert not streamed(1.0, error="cut").says_the_same(streamed(1.0, error="cut"))
    named = streamed(1.0)
    named.tokens = ["a", "bc"]
    assert not good.says_the_same(named)


def test_a_stream_takes_chunks_usage_and_errors() -> None:
    seen = ObservedStream(0.0)
    seen.take(chunk("a"))
    seen.take(chunk("b", "length", usage=None))
    seen.take_line('data: {"choices": [], "usage": {"completion_tokens": 2}}')
    seen.take_line("")
    seen.take_line("data: [DONE]")
    assert (seen.text, seen.num_tokens, len(seen.times)) == ("ab", 2, 2) and seen.is_complete
    seen.take({"error": {"message": "all ranks are lost"}})
    assert seen.error == "all ranks are lost" and not seen.is_complete
