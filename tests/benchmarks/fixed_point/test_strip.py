"""The picture of iterates is well-formed, has a line for each call, and tells settled from right and from wrong."""

from __future__ import annotations

from xml.etree import ElementTree

from benchmarks.fixed_point import strip
from benchmarks.fixed_point.__main__ import TOLD as TOLD_OF_WAYS
from benchmarks.fixed_point.__main__ import WAYS, chosen_block
from benchmarks.fixed_point.iterations import Iterate

SVG = "{http://www.w3.org/2000/svg}"
WORDS = {1: " <b>", 2: "&", 3: "\n", 4: "a very long word"}
SOLVED = {
    "first": [Iterate([1, 2, 3], 0, 0), Iterate([4, 1, 3], 1, 3), Iterate([4, 2, 3], 3, 2)],
    "second": [Iterate([None, None, None], 0, 0), Iterate([4, None, None], 1, 1), Iterate([4, 2, 3], 3, 1)],
}
TOLD = {"first": "all at once", "second": "one after another"}


def drawn() -> ElementTree.Element:
    return ElementTree.fromstring(strip.draw(SOLVED, WORDS, TOLD))


def test_a_line_for_each_call() -> None:
    groups = drawn().findall(f"{SVG}g")
    assert [group.get("class") for group in groups] == ["c0", "c1", "c2"] * 2
    assert [len(group.findall(f"{SVG}rect")) for group in groups] == [3] * 6


def test_colours_tell_what_is_known() -> None:
    fills = [[cell.get("fill") for cell in group.findall(f"{SVG}rect")] for group in drawn().findall(f"{SVG}g")]
    assert fills[1] == [strip.SETTLED, strip.WRONG, strip.RIGHT]
    assert fills[4] == [strip.SETTLED, strip.OPEN, strip.OPEN]
    assert fills[2] == fills[5] == [strip.SETTLED] * 3


def test_texts_are_escaped_and_fit_their_cells() -> None:
    texts = [text.text for text in drawn().findall(f"{SVG}g/{SVG}text")]
    assert texts[:4] == ["guess", "<b>", "&", "⏎"] and "a very…" in texts
    assert set(TOLD.values()) <= {text.text for text in drawn().findall(f"{SVG}text")}


def test_readers_who_want_no_motion_see_every_line() -> None:
    """Lines are hidden by the animation alone, which runs only for readers who have nothing against motion."""
    style = drawn().findtext(f"{SVG}style") or ""
    assert style.startswith("@media (prefers-reduced-motion: no-preference) {") and "@keyframes c2" in style


def test_the_block_that_is_drawn_is_a_typical_one_or_the_one_that_was_asked_for() -> None:
    def solved_in(calls: int) -> dict[str, list[Iterate]]:
        return {way: [SOLVED["first"][0]] * (calls + 1) for way in WAYS}

    blocks = [solved_in(calls) for calls in (2, 9, 6, 3)]
    assert chosen_block(blocks, 0) is blocks[2]
    assert chosen_block(blocks, 2) is blocks[1] and chosen_block(blocks, 9) is blocks[3]
    assert set(TOLD_OF_WAYS) == set(WAYS)
