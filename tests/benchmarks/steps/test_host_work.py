"""The host's work in a step: everything but the forward and the choice of tokens."""

from __future__ import annotations

import pytest

from benchmarks.steps.host_work import ANSWERS, FORWARD, HOST, measure_host_work
from lp import Engine
from lp.model.causal import CausalModel


def test_the_hosts_work_is_what_the_model_does_not_do(llama: Engine) -> None:
    prompts = [[5, 9, 5, 9, 5], [7, 8, 9]]
    work = measure_host_work(llama.checkpoint, prompts, num_rows=12, max_new_tokens=30)
    assert set(work.seconds) == {FORWARD, ANSWERS, *HOST} and min(work.seconds.values()) > 0
    assert work.host_s == pytest.approx(work.step_s - work.seconds[FORWARD] - work.seconds[ANSWERS])
    assert work.steps <= 2 * 29 and work.rows_per_step <= 12 and work.tokens_per_step >= 1
    assert isinstance(llama.checkpoint.model, CausalModel) and "forward" not in vars(llama.checkpoint.model)


def test_texts_that_are_over_at_once_are_refused(llama: Engine) -> None:
    with pytest.raises(ValueError, match="over with the first step"):
        measure_host_work(llama.checkpoint, [[5, 9]], num_rows=4, max_new_tokens=1)
