"""The seconds of choosing tokens, on a clock that is made up and on real logits."""

from __future__ import annotations

from typing import Any

import pytest

from lp.runner.step_times import answering
from lp.runner.step_times.answering import measure_answering
from lp.sampling.sampler import Sampler


def test_plain_and_sampled_steps_get_their_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """A greedy row takes 1 s and 2 s more with candidates, a sampled one 5 s more than a greedy one."""
    now = 0.0

    def answers(self: Sampler, logits: Any, tree: Any, tokens: Any, num_candidates: int = 0) -> None:
        nonlocal now
        now += 10 + len(tree) * (1 + 2 * bool(num_candidates) + 5 * self.is_sampled) + 4 * self.is_sampled

    monkeypatch.setattr(Sampler, "answers", answers)
    monkeypatch.setattr(answering.time, "perf_counter", lambda: now)
    extras = measure_answering(300, "cpu")
    assert (extras.greedy_plain, extras.sampled_plain) == (-2, 7)
    assert (extras.greedy_plain_row, extras.sampled_plain_row) == pytest.approx((-2, 3))
    assert (extras.sampled_step, extras.sampled_row) == pytest.approx((4, 5))
    assert (extras.host_step, extras.host_row) == (0, 0)


@pytest.mark.parametrize("vocab_size", [5, 300, 50_000])
def test_any_vocabulary_can_be_measured(vocab_size: int) -> None:
    extras = measure_answering(vocab_size, "cpu")
    assert 0 <= extras.sampled_row < 1 and abs(extras.sampled_plain) < 1
