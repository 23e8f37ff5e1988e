"""The report of a soak: what counts as a failure, and what it shows."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.faults.soak_load import LoadAnswer
from benchmarks.faults.soak_report import ResourceSample, SoakResult, describe, find_failures, levels


def holding(at_s: float, **more: float) -> ResourceSample:
    return replace(ResourceSample(at_s, 500.0, 60, 20, 3, 0, 1500.0, 120, 40), **more)


def soak(**more) -> SoakResult:
    answers = [
        LoadAnswer("short, greedy, prompt 0", True, 0.5, 0.1, None),
        LoadAnswer("long, sampled", False, 2.0, 2.0, None),
    ]
    holdings = [holding(5.0 * number) for number in range(40)]
    return replace(SoakResult(10.0, 15.0, 4, 3, "shm", [0, 2], 0, 5, answers, holdings, []), **more)


def test_a_soak_in_which_all_is_well() -> None:
    assert find_failures(soak()) == []
    text = describe(soak(), [])
    assert "2 ranks killed, one every 15 s; 5 epochs" in text and "Nothing failed." in text
    assert "short, streamed" in text and "long, whole" in text and "memory (RSS), MB" in text


def test_wrong_answers_are_failures() -> None:
    wrong = LoadAnswer("long, greedy, prompt 1", True, 1.0, 0.5, "rank 2 is lost")
    assert find_failures(soak(answers=[wrong])) == ["long, greedy, prompt 1: rank 2 is lost"]


def test_a_soak_that_shows_nothing_is_a_failure() -> None:
    assert find_failures(soak(answers=[])) == ["nothing was answered"]
    assert find_failures(soak(killed=[])) == ["no rank was killed"]
    assert find_failures(soak(killed=[], every_s=0.0)) == []


def test_what_grows_steadily_is_a_failure() -> None:
    memory = [holding(5.0 * number, memory_mb=500.0 + 5 * number) for number in range(40)]
    assert find_failures(soak(holdings=memory)) == ["memory (RSS), MB grew from 572 to 672"]
    files = [holding(5.0 * number, files=60 + number) for number in range(40)]
    assert find_failures(soak(holdings=files)) == ["open files and sockets grew from 74 to 94"]
    assert find_failures(soak(left=["lookahead-parallel-x"])) == ["left behind: lookahead-parallel-x"]


def test_what_ranks_hold_must_not_grow_where_none_is_killed() -> None:
    memory = [holding(5.0 * number, ranks_memory_mb=1500.0 + 20 * number) for number in range(40)]
    assert find_failures(soak(holdings=memory)) == []
    (grown,) = find_failures(soak(holdings=memory, killed=[], every_s=0.0))
    assert grown == "memory of those processes (RSS), MB grew from 1790 to 2190"


def test_what_grows_at_first_and_then_stays_is_none() -> None:
    settling = [holding(5.0 * number, memory_mb=min(500.0, 100.0 + 50 * number)) for number in range(40)]
    assert levels(settling, "memory_mb") == (500.0, 500.0)
    assert find_failures(soak(holdings=settling)) == []
    peak = [holding(5.0 * number, files=200 if number == 35 else 60) for number in range(40)]
    assert find_failures(soak(holdings=peak)) == []
