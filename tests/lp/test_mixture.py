"""Requests that share steps yield what each of them yields alone, whatever the others are."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from lp import Engine
from lp.scheduling.kv_budget import KVBudget
from lp.scheduling.settings import SchedulerSettings
from tests.lp.test_lossless import OTHER_ATTENTION
from tests.mixture import check_mixture, make_mixture, run_mixture
from tests.models import ARCHITECTURES
from tests.slow import exhaustive_except, slow_except


@pytest.mark.parametrize("seed", slow_except(range(2), 0))
def test_a_mixture_of_requests_yields_what_each_yields_alone(seed: int, llama: Engine) -> None:
    engine = Engine(llama.checkpoint)
    mixture = run_mixture(engine, make_mixture(engine, 32, seed))
    assert engine.is_idle and not engine.runner.cache_bytes
    check_mixture(mixture, llama)


@pytest.mark.parametrize("num_pages", exhaustive_except([3, 7], 3))
def test_preempted_requests_continue_as_if_nothing_had_happened(num_pages: int, llama: Engine) -> None:
    engine, dropped = Engine(llama.checkpoint, budget=KVBudget(num_pages)), []
    drop = engine.runner.drop
    engine.runner.drop = lambda sequence: (dropped.append(sequence.id), drop(sequence))[1]  # type: ignore[method-assign]
    mixture = run_mixture(engine, make_mixture(engine, 16, 5, most_prompt=120, most_tokens=190))
    assert dropped and engine.is_idle and not engine.runner.cache_bytes
    check_mixture(mixture, llama)


def test_a_compiled_forward_serves_a_mixture(checkpoint_folder: Callable[[str], Path], llama: Engine) -> None:
    engine = Engine.from_pretrained(str(checkpoint_folder("llama")), device="cpu", compile="on", step_times="off")
    mixture = run_mixture(engine, make_mixture(engine, 24, 3))
    check_mixture(mixture, llama)


@pytest.mark.parametrize(
    "architecture",
    exhaustive_except(sorted(set(ARCHITECTURES) - {"llama"}), *OTHER_ATTENTION, "mixtral", quick=["gemma3"]),
)
def test_every_architecture_serves_a_mixture(architecture: str, checkpoint_folder: Callable[[str], Path]) -> None:
    alone = Engine.from_pretrained(str(checkpoint_folder(architecture)), device="cpu")
    engine = Engine(alone.checkpoint)
    check_mixture(run_mixture(engine, make_mixture(engine, 10, 4)), alone)


def test_few_rows_in_a_step_change_nothing(llama: Engine) -> None:
    engine = Engine(llama.checkpoint, scheduler=SchedulerSettings(max_step_rows=3))
    mixture = run_mixture(engine, make_mixture(engine, 12, 8))
    check_mixture(mixture, llama)
