"""What launch/tune.py computes from a run: expected and measured speed, and which steps count."""

from __future__ import annotations

import pytest
from rich.console import Console
from rich.table import Table

from launch.data.workloads import Problem
from launch.diagnostics.speed import Steps, chosen, curve, expected_tokens_per_s, outlook, speed, windows
from launch.diagnostics.trial import Trial, make_requests
from lp import Engine
from lp.drafting.account import Size
from lp.methods.autoregressive import Autoregressive
from lp.request import Output
from lp.step_cost import StepTimes
from lp.text.stopping import FinishReason, Stopping
from parallel.comm.base import LocalExchange
from parallel.comm.channel import Channel
from parallel.groups.messages import Shutdown
from parallel.groups.worker import run_engine

TIMES = StepTimes((1, 11), (0.010, 0.020))


def steps_of(*taken: tuple[int, int, float]) -> Steps:
    steps = Steps()
    for rows, tokens, seconds in taken:
        steps.add(rows, tokens, seconds)
    return steps


def test_the_expectation_is_the_curve_at_the_rows_of_each_step() -> None:
    steps = steps_of((1, 1, 0.02), (6, 2, 0.03), (11, 6, 0.04))
    assert steps.expected_s(TIMES) == pytest.approx(0.015)
    assert steps.measured_s == pytest.approx(0.03)
    assert (steps.rows_per_step, steps.tokens_per_step) == (6, 3)
    assert [steps.rows_at(share) for share in (0.0, 0.5, 1.0)] == [1, 6, 11]


def test_speed_is_over_steps_of_one_token() -> None:
    found = speed(0.02, tokens_per_step=3.0, autoregressive_s=0.01)
    assert (found.ms, found.tokens_per_s, found.over) == pytest.approx((20, 150, 1.5))


def test_the_window_with_most_tokens_a_second_is_chosen() -> None:
    sizes = [Size(0, 64, 30.0, 0.3), Size(5, 64, 60.0, 0.5), Size(15, 64)]
    assert chosen(sizes).columns == 5
    assert [expected_tokens_per_s(size) for size in sizes] == [pytest.approx(100), pytest.approx(120), None]


def shown(table: Table) -> list[list[str]]:
    """Returns the words of each line of a table."""
    console = Console(width=80)
    with console.capture() as capture:
        console.print(table)
    return [line.split() for line in capture.get().splitlines()]


def test_tables_fit_eighty_columns() -> None:
    taken = steps_of((6, 3, 0.02)), steps_of((1, 1, 0.0125))
    lines = shown(outlook(TIMES, dict(zip(("auto", Autoregressive.method), taken, strict=True))))
    assert ["tokens", "per", "second", "200", "150", "100", "80"] in lines
    assert ["over", "autoregressive", "2.00x", "1.88x", "1.00x", "1.00x"] in lines
    assert ["11", "20.00", "0.6", "2.00x"] in shown(curve(TIMES))
    table = shown(windows([Size(0, 64, 30.0, 0.3), Size(5, 64)], levels=4))
    assert ["0", "0", "100", "chosen"] in table and ["5", "20", "not", "tried"] in table


PROBLEMS = [Problem(str(n), "code", text, None, f"line {n}") for n, text in enumerate(["def f(x):", "class Point"])]


def test_each_prompt_is_continued_twice_with_one_seed(llama: Engine) -> None:
    requests = make_requests(llama.request_builder, PROBLEMS, Stopping(8))
    assert [request.id for request in requests] == [
        f"{name} {method}" for name in ("warm-up", "0", "1") for method in ("auto", "autoregressive")
    ]
    for tuned, plain in zip(requests[::2], requests[1::2], strict=True):
        assert (tuned.decode.method, plain.decode.method) == ("auto", "autoregressive")
        assert (tuned.prompt, tuned.sampling, tuned.stopping) == (plain.prompt, plain.sampling, plain.stopping)


def test_a_prompt_that_cannot_be_used_is_named(llama: Engine) -> None:
    with pytest.raises(ValueError, match=r"line 0: workload\.max_new_tokens=100000 leaves no room"):
        make_requests(llama.request_builder, PROBLEMS, Stopping(100_000))


def serve(trial: Trial, engine: Engine) -> None:
    """Serves the trial's requests as rank 0 does."""
    run_engine(engine, Channel(LocalExchange()), trial.queue, trial.emit)


def test_steps_that_hold_a_prompt_do_not_count(llama: Engine) -> None:
    requests = make_requests(llama.request_builder, PROBLEMS, Stopping(8, ignore_eos=True))
    ended: list[int] = []
    trial = Trial(requests, lambda: ended.append(1))
    serve(trial, llama)
    assert len(ended) == len(requests)
    plain = trial.steps["autoregressive"]
    assert plain.tokens == [1] * 7 * len(PROBLEMS) and plain.rows == plain.tokens
    assert plain.seconds > 0
    tuned = trial.steps["auto"]
    assert sum(tuned.tokens) <= 7 * len(PROBLEMS) and len(tuned.rows) == len(tuned.tokens)


def test_a_signal_ends_the_current_text_and_drops_the_rest(llama: Engine) -> None:
    requests = make_requests(llama.request_builder, PROBLEMS, Stopping(8, ignore_eos=True))
    trial = Trial(requests, lambda: trial.queue.interrupt(15) if len(trial.steps["auto"].rows) else None)
    serve(trial, llama)
    assert trial.queue.interrupted_by == 15
    assert trial.steps["autoregressive"].rows == [] and llama.is_idle


@pytest.mark.parametrize(("reason", "failed"), [("error", True), ("length", False)])
def test_an_answer_that_is_not_a_number_ends_the_trial(reason: FinishReason, failed: bool, llama: Engine) -> None:
    requests = make_requests(llama.request_builder, PROBLEMS, Stopping(8))
    trial = Trial(requests, lambda: None)
    trial.queue.take(0.0)
    stats = llama.generate("def f(x):", max_new_tokens=2).stats
    trial.emit(Output(requests[0].id, [], "", None, reason, stats))
    assert (trial.failed, trial.queue.take(0.0) == [Shutdown()]) == (failed, failed)
