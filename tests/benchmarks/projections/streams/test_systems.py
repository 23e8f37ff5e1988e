"""On made-up curves, ranks that share trees have fewer rows each, and plain decoding is as computed."""

from __future__ import annotations

import itertools

import pytest

from benchmarks.projections.network import Network
from benchmarks.projections.streams import systems
from benchmarks.projections.streams.curves import Machine
from benchmarks.projections.streams.known_answers import KnownAnswers
from benchmarks.projections.streams.systems import STAGGER, Speed, groups_of, groups_tokens_per_s, run, systems_on
from lp import Engine
from lp.step_cost import Extras, StepTimes

PROMPTS = [[(3 + 7 * i + 5 * text) % 41 + 2 for i in range(12 + text)] for text in range(4)]
# Rows are free up to 8 and cost as much as the weights from there on, as on a core.
ONE = StepTimes((1, 8, 256), (0.010, 0.010, 0.320))
MACHINE = Machine("made up", ONE, StepTimes((1, 256), (0.004, 0.05)), Network(10, 10))


@pytest.fixture(scope="module")
def answers(llama: Engine) -> KnownAnswers:
    return KnownAnswers(llama.checkpoint, PROMPTS, 40, 8)


@pytest.fixture
def speeds(llama: Engine, answers: KnownAnswers, monkeypatch: pytest.MonkeyPatch):
    """A function that gives the speeds of systems on 4 ranks. The host's work takes no time."""
    monkeypatch.setattr(systems.time, "thread_time", lambda: 0.0)

    def speeds(streams: int, *names: str) -> dict[str, Speed]:
        wanted = [system for system in systems_on(MACHINE, 4) if system.name in names]
        return {system.name: run(llama.checkpoint, answers, system, streams) for system in wanted}

    return speeds


def test_plain_decoding_takes_a_row_and_a_step_for_each_token(speeds) -> None:
    found = speeds(4, "one rank, plain", "TP, plain")
    one = found["one rank, plain"]
    assert one.tokens_per_step == 1 and one.rows == one.largest == 4 * one.steps == one.tokens
    assert one.tokens_per_s == pytest.approx(4 / 0.010) and one.host_s == 0
    assert found["TP, plain"].tokens_per_s == pytest.approx(4 / MACHINE.tensor.at(4))


def test_ranks_that_share_trees_have_fewer_rows_and_servers_are_faster_with_many_streams(speeds) -> None:
    one, many = speeds(1, "one rank", "LP"), speeds(32, "LP")
    assert one["LP"].largest / one["LP"].steps < one["one rank"].largest / one["one rank"].steps
    assert one["LP"].tokens_per_step == pytest.approx(one["one rank"].tokens_per_step, rel=0.1)
    servers = 4 * speeds(8, "one rank")["one rank"].tokens_per_s
    assert servers > 1.5 * many["LP"].tokens_per_s


def test_every_text_is_decoded_once_after_the_first_group(answers: KnownAnswers) -> None:
    groups = groups_of(answers.texts, 1)
    assert [[text for text, _ in group] for group in groups] == [[text] for text in [*answers.texts, answers.texts[0]]]
    first, second = groups_of(answers.texts, 10)
    assert [given for _, given in first] == [0] * 4 + [STAGGER] * 4 + [2 * STAGGER] * 2
    assert len(second) == 10


def test_servers_have_even_shares() -> None:
    asked = []

    def one_rank(streams: int) -> Speed:
        asked.append(streams)
        return Speed("one rank", streams, 10 * streams, 10, 10, 10, 1.0, 1.0)

    assert groups_tokens_per_s(one_rank, 8, 3) == 3 * 5 and set(asked) == {1}
    asked.clear()
    assert groups_tokens_per_s(one_rank, 8, 19) == 19 * 5 and sorted(asked) == [2] * 5 + [3] * 3


def test_elastic_groups_are_as_large_as_those_of_a_server() -> None:
    assert [systems.elastic_size(4, streams) for streams in (1, 2, 3, 4, 64)] == [4, 2, 2, 1, 1]
    names = [system.name for system in systems_on(MACHINE, 4)]
    assert [systems.group_name(size, 4) for size in (4, 2, 1)] == ["LP", "LP, 2 ranks", "one rank"]
    assert {"LP", "LP, 2 ranks", "one rank"} < {*names}


def test_the_hosts_work_is_added_but_not_the_answers(
    llama: Engine, answers: KnownAnswers, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticks = itertools.count()
    monkeypatch.setattr(systems.time, "thread_time", lambda: float(next(ticks)))
    (system,) = (system for system in systems_on(MACHINE, 4) if system.name == "one rank, plain")
    found = run(llama.checkpoint, answers, system, 4)
    # The clock is read at a step's begin and end and, in between, when answers begin and end: 3 s less 1 s.
    assert found.host_s == 2.0 * found.steps
    assert found.tokens_per_s == pytest.approx(4 / 2.010)
    assert Extras() == system.times.extras
