"""Every method of lp/methods.py is run by `benchmarks.methods`, or left out for a reason that is said."""

from __future__ import annotations

import pytest

from benchmarks.methods.ways import PARTS, REFERENCES, WAYS
from lp.methods.registry import METHODS
from lp.request import DecodeLimits


def test_every_method_has_a_way_and_every_way_a_method() -> None:
    assert set(WAYS) == set(METHODS)
    assert all(WAYS.values())


@pytest.mark.parametrize("method", METHODS)
def test_ways_can_be_asked_for_and_say_what_their_texts_must_be(method: str) -> None:
    names = [f"{method}, {way.label}" for way in WAYS[method]]
    for way in WAYS[method]:
        way.decode(method).check(DecodeLimits())
        assert (way.reference in [*REFERENCES, *names]) != bool(way.why_none)
        assert not way.needs or way.needs in PARTS
