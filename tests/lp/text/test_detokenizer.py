"""Text comes in whole characters, and all of it together is the tokenizer's own decoding."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence

import pytest
from tokenizers import Tokenizer, decoders, models, normalizers
from transformers import PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import bytes_to_unicode

from lp.text.detokenizer import Detokenizer
from tests.models import BOS, EOS, VOCAB_SIZE, build_tokenizer

REPLACEMENT = "�"
TEXTS = [
    "def f(x):\n    return x",
    "naïve café",
    "你好，世界",
    "👩‍👩‍👧 and 🇩🇪!",
    "a\u0301 \u200b é",
    " ",
    "hello  world hello",
]


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return build_tokenizer()


@pytest.fixture(scope="module")
def fallback() -> PreTrainedTokenizerFast:
    return build_byte_fallback_tokenizer()


@pytest.fixture(params=["byte level", "byte fallback"])
def either(
    request: pytest.FixtureRequest, tokenizer: PreTrainedTokenizerFast, fallback: PreTrainedTokenizerFast
) -> PreTrainedTokenizerFast:
    return tokenizer if request.param == "byte level" else fallback


def build_byte_fallback_tokenizer() -> PreTrainedTokenizerFast:
    """A tokenizer like Llama 2's: ▁ is a space, unknown characters are written in bytes, a leading space is dropped."""
    words = ["hello", "world", "▁hello", "▁world"]
    parts = {word[:end] for word in words for end in range(2, len(word) + 1)}
    merges = [(part[:-1], part[-1]) for part in sorted(parts, key=len)]
    letters = {letter for word in words for letter in word} | {"界", "\n", "x"}
    pieces = ["<s>", "</s>", "<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), *sorted(letters), *sorted(parts)]
    vocabulary = {piece: number for number, piece in enumerate(pieces)}
    backend = Tokenizer(models.BPE(vocabulary, merges, byte_fallback=True, unk_token="<unk>"))
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    stages = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    backend.decoder = decoders.Sequence(stages)
    return PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>", eos_token="</s>", unk_token="<unk>")


def ids(tokenizer: PreTrainedTokenizerFast, *pieces: str) -> list[int]:
    vocabulary = tokenizer.get_vocab()
    return [vocabulary[piece] for piece in pieces]


def pieces(tokenizer: PreTrainedTokenizerFast, tokens: list[int], prompt: Sequence[int] = ()) -> list[str]:
    """The text that each token adds, and then the text that the end adds."""
    detokenizer = Detokenizer(tokenizer, prompt)
    return [detokenizer.push(token) for token in tokens] + [detokenizer.flush()]


@pytest.mark.parametrize("text", TEXTS)
def test_characters_come_whole(either: PreTrainedTokenizerFast, text: str) -> None:
    tokens = either.encode(text)
    found = pieces(either, tokens)
    assert "".join(found) == either.decode(tokens) == text
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


def test_a_replacement_character_in_the_text_itself_is_kept(
    tokenizer: PreTrainedTokenizerFast, fallback: PreTrainedTokenizerFast
) -> None:
    for text in (REPLACEMENT, REPLACEMENT * 3 + "a", "a" + REPLACEMENT):
        assert "".join(pieces(tokenizer, tokenizer.encode(text))) == text
    for text in (REPLACEMENT, REPLACEMENT + "x", "x" + REPLACEMENT, f"hello {REPLACEMENT} world"):
        assert "".join(pieces(fallback, fallback.encode(text))) == text


def test_special_tokens_have_no_text(tokenizer: PreTrainedTokenizerFast) -> None:
    word = tokenizer.encode("word")
    assert "".join(pieces(tokenizer, [BOS, *word, EOS, *word])) == "wordword"
    assert pieces(tokenizer, [EOS]) == ["", ""]
    smile = tokenizer.encode("😀")
    assert "".join(pieces(tokenizer, [*smile[:2], EOS, *smile[2:]])) == "😀"


@pytest.mark.parametrize("seed", range(30))
def test_random_tokens_give_what_the_tokenizer_decodes(tokenizer: PreTrainedTokenizerFast, seed: int) -> None:
    """Random tokens are mostly broken bytes, as a model with random weights writes them."""
    rng = random.Random(seed)
    tokens = [rng.randrange(VOCAB_SIZE) for _ in range(200)]
    assert "".join(pieces(tokenizer, tokens)) == tokenizer.decode(tokens, skip_special_tokens=True)


@pytest.mark.parametrize("seed", range(30))
def test_text_of_any_tokens_is_given_out(fallback: PreTrainedTokenizerFast, seed: int) -> None:
    """Among them are runs of bytes without a valid prefix, for which tokenizers' DecodeStream raises an exception."""
    rng = random.Random(seed)
    tokens = [rng.randrange(len(fallback) + 20) for _ in range(200)]
    prompt = [rng.randrange(len(fallback) + 20) for _ in range(rng.randrange(40))]
    found = pieces(fallback, tokens, prompt)
    assert len(found[-1]) <= 3
    broken = ids(fallback, *["<0xFF>"] * 100)
    assert "".join(pieces(fallback, broken, prompt)) == REPLACEMENT * 100
    assert "".join(pieces(fallback, broken, prompt)[:-1]) == REPLACEMENT * 97


def test_a_wrong_byte_does_not_change_text_that_was_given_out(fallback: PreTrainedTokenizerFast) -> None:
    smile = ids(fallback, "<0xF0>", "<0x9F>", "<0x98>", "<0x80>")
    wrong, x = ids(fallback, "<0xFF>", "x")
    whole = ["", "", "", "😀"]
    assert pieces(fallback, [*smile, wrong, x, *smile]) == [*whole, "", REPLACEMENT + "x", *whole, ""]
    assert "".join(pieces(fallback, [*smile, wrong])) == "😀" + REPLACEMENT
    assert "".join(pieces(fallback, [*smile, *smile[:3]])) == "😀" + REPLACEMENT * 3


@pytest.mark.parametrize("seed", range(10))
def test_valid_text_is_what_the_tokenizer_decodes(either: PreTrainedTokenizerFast, seed: int) -> None:
    """The text is cut between two characters into a prompt and its continuation."""
    rng = random.Random(seed)
    text = "".join(rng.choice(["hello", " ", "x", "\n", "é", "界", "数", "你", "😀", "👩‍👧"]) for _ in range(80))
    tokens = either.encode(text)
    for _ in range(20):
        cut = rng.randrange(len(tokens))
        while REPLACEMENT in either.decode(tokens[:cut]):
            cut -= 1
        found = pieces(either, tokens[cut:], tokens[:cut])
        assert "".join([str(either.decode(tokens[:cut])), *found]) == either.decode(tokens) == text
        assert not any(REPLACEMENT in piece for piece in found)


def test_characters_that_never_end_with_a_token_are_not_held_back() -> None:
    """Some vocabularies have tokens that join the end of a character to the start of the next."""
    char = "".join(bytes_to_unicode()[byte] for byte in "ก".encode())
    vocabulary = {char[:2]: 0, char[2:] + char[:2]: 1, char[2:]: 2}
    backend = Tokenizer(models.BPE(vocabulary, []))
    backend.decoder = decoders.ByteLevel()
    found = pieces(PreTrainedTokenizerFast(tokenizer_object=backend), [0, *[1] * 99, 2])
    assert found == ["", *"ก" * 100, ""]


def test_the_space_after_a_prompt_is_kept(fallback: PreTrainedTokenizerFast) -> None:
    hello, world, space = ids(fallback, "▁hello", "▁world", "▁")
    assert "".join(pieces(fallback, [world, hello], [BOS, hello])) == " world hello"
    assert "".join(pieces(fallback, [world], [hello, *[EOS] * 100])) == " world"
    assert "".join(pieces(fallback, [*[EOS] * 100, world], [hello])) == " world"
    assert "".join(pieces(fallback, [world], [space])) == " world"
    assert "".join(pieces(fallback, [world, hello])) == "world hello"
    assert "".join(pieces(fallback, [world], [BOS])) == "world"


def test_a_long_text_costs_the_same_for_each_token(fallback: PreTrainedTokenizerFast) -> None:
    for tokens in (ids(fallback, "<0xFF>") * 20_000, fallback.encode("hello 你好 ") * 2_000, [EOS] * 20_000):
        before = time.process_time()
        pieces(fallback, tokens)
        assert time.process_time() - before < 10
