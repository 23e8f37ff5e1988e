"""The index of contexts: the longest match counts, the newest follower comes first, memory is bounded."""

from __future__ import annotations

from lp.drafting.contexts import FOLLOWERS, ContextIndex


def test_the_longest_known_context_answers() -> None:
    index = ContextIndex((1, 2, 4), 1000)
    index.add_text([1, 2, 3, 4, 5, 9, 4, 6])
    assert index.lookup((1, 2, 3, 4)) == (2, [5])
    assert index.lookup((8, 8, 3, 4)) == (1, [5])
    assert index.lookup((8, 8, 8, 4)) == (0, [6, 5]), "after 4 came 5 and, later, 6"
    assert index.lookup((4,)) == (0, [6, 5])
    assert index.lookup((7,)) is None


def test_the_newest_followers_come_first_and_few_are_kept() -> None:
    index = ContextIndex((1,), 1000)
    for token in (10, 11, 12, 11, 13, 14, 15):
        index.add((1,), token)
    newest = [15, 14, 13, 11]
    assert index.lookup((1,)) == (0, newest) and len(newest) == FOLLOWERS


def test_text_that_comes_in_pieces_is_indexed_as_a_whole() -> None:
    text = [1, 2, 3, 1, 2, 4, 1, 2, 3, 5]
    whole, pieces = ContextIndex((1, 2, 3), 1000), ContextIndex((1, 2, 3), 1000)
    whole.add_text(text)
    pieces.add_text(text[:4])
    pieces.add_text(text[:7], start=4)
    pieces.add_text(text, start=7)
    assert len(pieces) == len(whole)
    for end in range(1, len(text) + 1):
        assert pieces.lookup(tuple(text[:end])) == whole.lookup(tuple(text[:end]))


def test_the_oldest_contexts_are_forgotten() -> None:
    index = ContextIndex((1,), 3)
    index.add_text([1, 2, 3, 4, 5])
    assert len(index) == 3
    assert index.lookup((1,)) is None and index.lookup((4,)) == (0, [5])
