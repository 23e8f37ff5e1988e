"""Text comes as whole characters, and all of it is the tokenizer's own decoding."""

from __future__ import annotations

import random

import pytest
from transformers import PreTrainedTokenizerFast

from lp.detokenizer import Detokenizer
from tests.models import BOS, EOS, VOCAB_SIZE, build_tokenizer

REPLACEMENT = "�"


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return build_tokenizer()


def pieces(tokenizer: PreTrainedTokenizerFast, tokens: list[int]) -> list[str]:
    """What each token adds, and what the end adds."""
    detokenizer = Detokenizer(tokenizer)
    return [detokenizer.push(token) for token in tokens] + [detokenizer.flush()]


@pytest.mark.parametrize(
    "text", ["def f(x):\n    return x", "naïve café", "你好，世界", "👩‍👩‍👧 and 🇩🇪!", "a\u0301 \u200b é", " "]
)
def test_characters_come_whole(tokenizer: PreTrainedTokenizerFast, text: str) -> None:
    tokens = tokenizer.encode(text)
    assert len(tokens) >= len(text) or text.isascii()
    found = pieces(tokenizer, tokens)
    assert "".join(found) == text
    assert not any(REPLACEMENT in piece for piece in found)


def test_a_character_waits_for_its_last_byte(tokenizer: PreTrainedTokenizerFast) -> None:
    tokens = tokenizer.encode("😀x")
    assert len(tokens) == 5
    assert pieces(tokenizer, tokens) == ["", "", "", "😀", "x", ""]


def test_an_incomplete_character_shows_at_the_end(tokenizer: PreTrainedTokenizerFast) -> None:
    tokens = tokenizer.encode("ok 😀")[:-1]
    found = pieces(tokenizer, tokens)
    assert "".join(found[:-1]) == "ok "
    assert "".join(found) == tokenizer.decode(tokens) == "ok " + REPLACEMENT


def test_a_character_that_breaks_off_does_not_hold_up_the_rest(tokenizer: PreTrainedTokenizerFast) -> None:
    tokens = tokenizer.encode("😀")[:2] + tokenizer.encode("x")
    assert "".join(pieces(tokenizer, tokens)) == tokenizer.decode(tokens) == REPLACEMENT + "x"


def test_a_replacement_character_in_the_text_itself_is_kept(tokenizer: PreTrainedTokenizerFast) -> None:
    for text in (REPLACEMENT, REPLACEMENT * 3 + "a", "a" + REPLACEMENT):
        assert "".join(pieces(tokenizer, tokenizer.encode(text))) == text


def test_special_tokens_have_no_text(tokenizer: PreTrainedTokenizerFast) -> None:
    word = tokenizer.encode("word")
    assert "".join(pieces(tokenizer, [BOS, *word, EOS, *word])) == "wordword"
    assert pieces(tokenizer, [EOS]) == ["", ""]
    smile = tokenizer.encode("😀")
    assert "".join(pieces(tokenizer, [*smile[:2], EOS, *smile[2:]])) == "😀"


@pytest.mark.parametrize("seed", range(30))
def test_random_tokens_give_what_the_tokenizer_decodes(tokenizer: PreTrainedTokenizerFast, seed: int) -> None:
    """Mostly broken bytes, as a model with random weights writes them."""
    rng = random.Random(seed)
    tokens = [rng.randrange(VOCAB_SIZE) for _ in range(200)]
    assert "".join(pieces(tokenizer, tokens)) == tokenizer.decode(tokens, skip_special_tokens=True)
