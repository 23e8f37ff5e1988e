"""Every method of lp/methods.py is run by `benchmarks.methods`, or left out for a reason that is said."""

from __future__ import annotations

import pytest

from benchmarks.methods import ways
from benchmarks.methods.ways import PARTS, REFERENCES, WAYS, Way, choose
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


def test_plain_decoding_is_always_measured_and_first() -> None:
    assert next(iter(choose(["jacobi"], []).ways)) == "autoregressive"
    assert list(choose(["jacobi"], []).ways) == ["autoregressive", "jacobi", "jacobi, window=auto"]


def test_what_lacks_a_part_is_left_out_with_the_reason() -> None:
    chosen = choose(["auto"], [])
    assert "auto, index" not in chosen.ways
    assert "--part index=PATH" in chosen.skipped["auto, index"]
    assert "auto, index" in choose(["auto"], ["index"]).ways


def test_a_method_without_a_way_is_left_out_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ways, "WAYS", {name: own for name, own in WAYS.items() if name != "jacobi"})
    chosen = choose([*METHODS], [])
    assert not [name for name in chosen.ways if name.startswith("jacobi")]
    assert "ways.py" in chosen.skipped["jacobi"]


def test_only_the_references_that_are_needed_are_run() -> None:
    assert choose(["jacobi"], []).references == ["transformers generate"]
    assert len(choose(["beam"], []).references) == 3


def test_an_unknown_method_is_refused() -> None:
    with pytest.raises(ValueError, match="--methods medium is unknown"):
        choose(["medium"], [])


def test_a_way_with_wrong_settings_is_refused() -> None:
    with pytest.raises(ValueError, match="columns"):
        Way(settings={"columns": 3}).decode("jacobi")


def test_a_way_may_be_compared_with_the_plain_way_of_its_method(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, other = Way("plain", reference=None, why_none="sampled", temperature=0.8), Way(reference="auto, plain")
    monkeypatch.setitem(ways.WAYS, "auto", [plain, other])
    chosen = choose(["auto"], [])
    assert list(chosen.ways) == ["autoregressive", "auto, plain", "auto"]
    assert chosen.references == ["transformers generate"]
