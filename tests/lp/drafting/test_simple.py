"""The drafter in Python: it drafts from the text, from earlier answers, and from sources that the user has written."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator

import pytest

from lp.drafting import simple
from lp.drafting.drafter import NativeDrafter
from lp.drafting.history import DraftHistory
from lp.drafting.ngrams import Proposals, last_token
from lp.drafting.simple import Observation, SequenceStart, SimpleDrafter
from lp.methods.auto.method import Auto
from lp.platform.library import library, python_alone
from lp.step_cost import StepTimes
from tests.lp.drafting.rule_models import PROMPT, Model, answers, counting, decode, sums, unguessable

ALL = Auto(rows=24, shared_drafts=True, max_window=5)
CPU = StepTimes((1, 4, 8, 16, 32, 64, 128), (0.015, 0.015, 0.017, 0.019, 0.025, 0.036, 0.064))


@pytest.fixture
def without_library() -> Iterator[None]:
    with python_alone():
        yield


def only(name: str) -> Auto:
    return Auto(rows=24, **{f"{other}_drafts": other == name for other in ("window", "suffix", "recycled")})


@pytest.mark.usefixtures("without_library")
@pytest.mark.parametrize("model", [counting, sums, unguessable], ids=lambda model: model.__name__)
@pytest.mark.parametrize("times", [None, CPU], ids=["unknown times", "a CPU"])
@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_any_model_is_followed(model: Model, times: StepTimes | None, temperature: float) -> None:
    """`decode` checks every token, several requests of one owner one after the other."""
    history = DraftHistory(times)
    for settings in (ALL, Auto()):
        for _ in range(2):
            run = decode(model, 80, settings, times, history, "ann", temperature=temperature)
            assert set(run.accepted) <= {"suffix", "recycled"}


@pytest.mark.usefixtures("without_library")
@pytest.mark.parametrize("name", ["suffix", "recycled"])
def test_each_source_saves_steps_by_itself(name: str) -> None:
    run = decode(counting, 150, only(name))
    assert set(run.accepted) == {name} and run.tokens_per_step > 1.5


@pytest.mark.usefixtures("without_library")
def test_without_sources_there_are_no_drafts() -> None:
    """The window has no place in it."""
    run = decode(counting, 20, only("window"))
    assert not run.proposed and run.tokens_per_step == 1


@pytest.mark.usefixtures("without_library")
def test_trees_are_as_large_as_settings_say_and_as_pays() -> None:
    assert max(decode(counting, 150, Auto(rows=24)).rows) == 24
    slow = StepTimes((1, 2, 128), (0.010, 0.019, 1.28))
    assert max(decode(unguessable, 150, Auto(), slow, DraftHistory(slow)).rows) < 12
    assert decode(counting, 150, Auto(), CPU, DraftHistory(CPU)).seconds < 0.6 * 150 * 0.015


@pytest.mark.usefixtures("without_library")
def test_offers_are_descending_and_drafts_can_be_dropped() -> None:
    rng, history = random.Random(0), DraftHistory(CPU)
    decoder = history.drafter(Auto(), PROMPT, 0.0, None)
    tokens = list(PROMPT)
    for _ in range(60):
        decoder.move_to(tokens)
        odds = decoder.offer(20, 30, 1e-3)
        assert list(odds) == sorted(odds, reverse=True)
        tree = decoder.take(rng.randint(0, len(odds)), None)
        assert len(tree) == decoder.num_drafts == len(decoder.kinds)
        if len(tree) > 2:
            tree = decoder.keep(tree.path(len(tree) - 1), None)
            assert tree.depths.tolist() == list(range(len(tree)))
        tokens += decoder.commit(answers(counting, tree, tokens, 8)).tokens
    assert tokens[len(PROMPT) :] == decode(counting, len(tokens) - len(PROMPT), Auto(rows=1)).tokens[len(PROMPT) :]
    assert len(tokens) - len(PROMPT) > 90


class NextNumber:
    """A source of the user: it proposes the next number, and remembers what it was taught."""

    name = "next number"
    observations: list[Observation] = []  # noqa: RUF012

    @staticmethod
    def kinds(settings: Auto) -> list[float]:
        return [0.9]

    @classmethod
    def begin(cls, start: SequenceStart) -> NextNumber:
        return cls()

    def propose(self, path: int, position: int) -> Proposals:
        return [(0, [(last_token(path) + 1) % 50])]

    def learn(self, observation: Observation) -> None:
        self.observations.append(observation)


@pytest.mark.parametrize("has_library", [True, False])
def test_a_source_of_the_user_takes_part(has_library: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if has_library and library() is None:
        pytest.skip("there is no C++ compiler")
    monkeypatch.setattr(simple, "OWN_SOURCES", (NextNumber,))
    monkeypatch.setattr(NextNumber, "observations", [])
    monkeypatch.setattr("lp.drafting.history.library", library if has_library else lambda: None)
    settings = Auto(window_drafts=False, suffix_drafts=False, recycled_drafts=False)
    run = decode(counting, 40, settings)
    assert set(run.accepted) == {"next number"} and run.tokens_per_step > 4
    accepted = [token for observation in NextNumber.observations for token in observation.accepted]
    assert accepted == run.tokens[run.prompt_length :]
    with_others = decode(counting, 40, dataclasses.replace(settings, suffix_drafts=True, recycled_drafts=True))
    assert with_others.accepted["next number"] and with_others.tokens == run.tokens


def test_the_library_is_used_without_sources_of_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    if library() is None:
        pytest.skip("there is no C++ compiler")
    assert isinstance(DraftHistory().drafter(Auto(), [1, 2], 0.0, None), NativeDrafter)
    monkeypatch.setattr(simple, "OWN_SOURCES", (NextNumber,))
    assert isinstance(DraftHistory().drafter(Auto(), [1, 2], 0.0, None), SimpleDrafter)
