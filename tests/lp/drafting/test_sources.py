"""All sources side by side: their kinds do not overlap, and a new source needs no change but its name in the list."""

from __future__ import annotations

import pytest

from lp.drafting import sources
from lp.drafting.base import Observation, Proposals, SequenceStart
from lp.drafting.contexts import last_token
from lp.drafting.sources import SOURCES, Kinds, Sources, ranked
from lp.methods import Auto
from tests.lp.drafting.rule_models import counting, decode


class NextNumber:
    """A source that proposes the next number, and remembers what it was taught."""

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


def test_a_new_source_is_a_class_and_its_name_in_the_list(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "SOURCES", (*SOURCES, NextNumber))
    monkeypatch.setattr(NextNumber, "observations", [])
    settings = Auto(window_drafts=False, suffix_drafts=False, recycled_drafts=False)
    run = decode(counting, 40, settings)
    assert set(run.accepted) == {"next number"} and run.tokens_per_step > 4
    accepted = [token for observation in NextNumber.observations for token in observation.accepted]
    assert accepted == run.tokens[run.prompt_length :]


def test_kinds_of_all_sources_are_numbered_side_by_side() -> None:
    kinds = Kinds(Auto())
    assert len(kinds.sources) == len(kinds.priors)
    for source in SOURCES:
        first, number = kinds.first[source.name], len(source.kinds(Auto()))
        assert kinds.sources[first : first + number] == [source.name] * number
    assert all(0 < prior < 1 for prior in kinds.priors)


def test_the_surest_list_keeps_its_kinds_and_the_others_are_rivalled() -> None:
    kinds = Kinds(Auto())
    assert len(kinds.priors) == 2 * kinds.num_own and kinds.sources[kinds.num_own :] == kinds.sources[: kinds.num_own]
    assert all(rivalled < own for own, rivalled in zip(kinds.priors, kinds.priors[kinds.num_own :], strict=False))
    odds = [0.2, 0.1, 0.6, 0.3, 0.6]
    assert ranked([(0, [7, 8]), (2, [7, 9]), (4, [5])], odds, 5) == [(5, [7, 8]), (2, [7, 9]), (9, [5])]
    assert ranked([(0, [7, 8])], odds, 5) == [(0, [7, 8])] and ranked([], odds, 5) == []


@pytest.mark.parametrize("name", ["window", "suffix", "recycled"])
def test_settings_leave_sources_out(name: str) -> None:
    settings = Auto(**{f"{other}_drafts": other == name for other in ("window", "suffix", "recycled")})
    found = Sources(Kinds(settings), SequenceStart(settings, [1, 2, 1], is_sampled=False))
    assert [source.name for source in found._in_use] == [name]
