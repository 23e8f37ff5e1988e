"""Contexts and their index: the longest match counts, the newest follower comes first, and memory is bounded."""

from __future__ import annotations

import random

import pytest

from lp.drafting.ngrams import FOLLOWERS, LONGEST, NO_TOKEN, ContextIndex, context_of, extend, last_token, mask, pairs

LARGEST_TOKEN = 300_000


def lookup(index: ContextIndex, *tokens: int) -> tuple[int, list[int]] | None:
    proposals = index.propose(context_of(tokens), len(tokens) - 1)
    return (proposals[0][0] // FOLLOWERS, list(proposals[0][1])) if proposals else None


def with_text(lengths: tuple[int, ...], text: list[int], capacity: int = 1000) -> ContextIndex:
    """An index of one text."""
    index = ContextIndex(lengths, capacity)
    index.add_text(context_of(text[:1]), text[1:])
    return index


def test_a_context_is_the_last_tokens() -> None:
    rng = random.Random(0)
    text = [rng.randrange(LARGEST_TOKEN) for _ in range(20)]
    context = context_of([])
    for end, token in enumerate(text, 1):
        context = extend(context, token)
        assert context == context_of(text[:end]) == context_of(text[max(0, end - LONGEST) : end])
        assert last_token(context) == token
    assert context & mask(3) == context_of(text) & mask(3) == context_of([7, *text[-3:]]) & mask(3)
    assert context & mask(3) != context_of([7, *text[-2:]]) & mask(3)


def test_contexts_of_different_lengths_differ() -> None:
    assert len({context_of([0, 0]) & mask(length) for length in range(1, LONGEST + 1)}) == LONGEST
    assert last_token(context_of([])) == NO_TOKEN


def test_pairs_are_contexts_of_two_tokens() -> None:
    tokens = [5, 0, LARGEST_TOKEN, 0]
    assert pairs([9, *tokens], [*tokens, 1]) == [
        context_of(both) & mask(2) for both in zip([9, *tokens], [*tokens, 1], strict=True)
    ]


def test_the_longest_known_context_answers() -> None:
    index = with_text((1, 2, 4), [1, 2, 3, 4, 5, 9, 4, 6])
    assert lookup(index, 1, 2, 3, 4) == (2, [5])
    assert lookup(index, 8, 8, 3, 4) == (1, [5])
    assert lookup(index, 8, 8, 8, 4) == (0, [6, 5]), "after 4 came 5 and, later, 6"
    assert lookup(index, 4) == (0, [6, 5])
    assert lookup(index, 7) is None


def test_the_newest_followers_come_first_and_few_are_kept() -> None:
    index = ContextIndex((1,), 1000)
    for token in (10, 11, 12, 11, 13, 14, 15):
        index.add(context_of([1]), token)
    newest = [15, 14, 13, 11]
    assert lookup(index, 1) == (0, newest) and len(newest) == FOLLOWERS


@pytest.mark.parametrize("lengths", [(1, 2, 3), (1, 2, 3, 4, 6, LONGEST)])
def test_a_text_added_in_pieces_gives_the_same_index(lengths: tuple[int, ...]) -> None:
    text = [1, 2, 3, 1, 2, 4, 1, 2, 3, 5]
    whole, pieces = with_text(lengths, text), with_text(lengths, text[:4])
    for start, end in [(4, 7), (7, 10)]:
        pieces.add_text(context_of(text[:start]), text[start:end])
    assert len(pieces) == len(whole)
    for end in range(1, len(text) + 1):
        assert lookup(pieces, *text[:end]) == lookup(whole, *text[:end])


def test_the_oldest_contexts_are_forgotten() -> None:
    index = with_text((1,), [1, 2, 3, 4, 5], capacity=3)
    assert len(index) == 3
    assert lookup(index, 1) is None and lookup(index, 4) == (0, [5])
