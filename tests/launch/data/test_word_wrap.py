"""Answers of a chat are broken between words, however the text is cut as it comes."""

from __future__ import annotations

import random

import pytest

from launch.data.output import WordWrap


def wrapped(parts: list[str], width: int) -> str:
    wrap = WordWrap()
    shown = [text for part in parts for text, _ in wrap.push(part, None, width)]
    return "".join([*shown, *(text for text, _ in wrap.flush(width))])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("one two three", "one two\nthree"),
        ("one two\nthree four", "one two\nthree\nfour"),
        ("  one", "  one"),
        ("one  two", "one  two"),
        ("a-word-that-is-longer b", "a-word-that-is-longer b"),
        ("ab\n\n- one two three", "ab\n\n- one\ntwo\nthree"),
        (
            "```\na line of code that is long\n```\none two three",
            "```\na line of code that is long\n```\none two\nthree",
        ),
        ("\u4e00\u4e8c\u4e09\u56db\u4e94", "\u4e00\u4e8c\u4e09\u56db\n\u4e94"),
        ("12345678 12345678", "12345678\n12345678"),
    ],
)
def test_lines_are_broken_between_words(text: str, expected: str) -> None:
    assert wrapped([text], 8) == expected
    assert wrapped([*text], 8) == expected
    rng = random.Random(1)
    for _ in range(20):
        cuts = sorted(rng.choices(range(len(text) + 1), k=3))
        assert wrapped([text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)], 8) == expected


def test_a_whole_word_is_shown_at_once() -> None:
    wrap = WordWrap()
    assert [*wrap.push("one tw", "bold", 80)] == [("one", "bold")]
    assert [*wrap.push("o ", None, 80)] == [(" ", "bold"), ("tw", "bold"), ("o", None)]
