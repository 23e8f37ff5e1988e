"""When a rank is killed in a stream."""

from __future__ import annotations

import subprocess

import pytest

from benchmarks.faults.kills import Killer, KillPlan
from tests.benchmarks.faults.streams import streamed

TEXT = "def running_mean(values, width):"


@pytest.mark.parametrize("num_events", [1, 4, 32])
def test_a_kill_in_decode_comes_however_many_events_bring_the_text(num_events: int) -> None:
    undisturbed = streamed(*(0.001 * number for number in range(1, len(TEXT) + 1)), text=TEXT)
    moment = KillPlan("greedy", "decode", 0, progress=1.0, fraction=0.5).moment(undisturbed)
    with subprocess.Popen(["sleep", "60"]) as victim:
        killer = Killer(victim.pid, moment, undisturbed)
        for number in range(num_events + 1):
            assert killer.finish() is None, f"killed after {number} of {num_events} events"
            text = TEXT[: len(TEXT) * number // num_events]
            killer.on_event(streamed(*(0.01 * came for came in range(1, number + 1)), text=text))
            if len(text) >= moment.characters:
                break
        assert killer.finish() is not None and victim.wait() < 0
    assert 0.7 * len(TEXT) < moment.characters < 0.9 * len(TEXT)


def test_a_kill_in_the_prefill_comes_before_the_first_event() -> None:
    undisturbed = streamed(0.05, 0.06, text=TEXT)
    moment = KillPlan("greedy", "prefill", 0, progress=0.5, fraction=0.5).moment(undisturbed)
    with subprocess.Popen(["sleep", "60"]) as victim:
        killer = Killer(victim.pid, moment, undisturbed)
        killer.on_event(streamed(text=""))
        assert killer.finish() is not None and victim.wait() < 0
