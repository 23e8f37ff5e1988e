"""The reference's sources: which of them are in use, and which of their lists keep their kinds."""

from __future__ import annotations

import pytest

from lp.drafting.account import Kinds
from lp.methods.auto.method import Auto
from tests.lp.drafting.reference.sources import SequenceStart, Sources, ranked


def test_the_surest_list_keeps_its_kinds_and_the_others_are_rivalled() -> None:
    odds = [0.2, 0.1, 0.6, 0.3, 0.6]
    assert ranked([(0, [7, 8]), (2, [7, 9]), (4, [5])], odds, 5) == [(5, [7, 8]), (2, [7, 9]), (9, [5])]
    assert ranked([(0, [7, 8])], odds, 5) == [(0, [7, 8])] and ranked([], odds, 5) == []


@pytest.mark.parametrize("name", ["window", "suffix", "recycled"])
def test_settings_leave_sources_out(name: str) -> None:
    settings = Auto(**{f"{other}_drafts": other == name for other in ("window", "suffix", "recycled")})
    found = Sources(Kinds(settings), SequenceStart(settings, [1, 2, 1], is_sampled=False))
    assert [source.name for source in found._in_use] == [name]
