"""A text ends at the right token and character, wherever steps and tokens begin and end."""

from __future__ import annotations

import random

import pytest
from transformers import PreTrainedTokenizerFast

from lp import Engine, Lookahead, Sampling, Stopping
from lp.text.detokenizer import Detokenizer
from lp.text.stopping import FinishReason, StopConditions, TextStream
from tests.models import EOS, VOCAB_SIZE, build_tokenizer


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return build_tokenizer()


def run(
    tokenizer: PreTrainedTokenizerFast, blocks: list[list[int]], stopping: Stopping, most: int = 1000
) -> tuple[list[int], list[str], FinishReason | None]:
    """Feeds blocks of accepted tokens; returns the tokens kept, the text given out after each block, and the reason."""
    conditions = StopConditions(stopping, [EOS], most)
    stream = TextStream(Detokenizer(tokenizer), stopping.stop)
    kept: list[int] = []
    texts = []
    for block in blocks:
        taken, reason = conditions.take(block, stream)
        kept += taken
        texts.append(stream.take(final=reason is not None))
        if reason:
            return kept, texts, reason
    return kept, [*texts, stream.take(final=True)], None


def each(tokens: list[int]) -> list[list[int]]:
    """Each token as a block of its own."""
    return [[token] for token in tokens]


def test_end_of_sequence_ends_a_text_and_has_no_text(tokenizer: PreTrainedTokenizerFast) -> None:
    word = tokenizer.encode("one two")
    kept, texts, reason = run(tokenizer, [[*word, EOS, *word]], Stopping())
    assert (kept, "".join(texts), reason) == ([*word, EOS], "one two", "stop")


def test_end_of_sequence_can_be_ignored(tokenizer: PreTrainedTokenizerFast) -> None:
    word = tokenizer.encode("one")
    kept, texts, reason = run(tokenizer, [[*word, EOS, *word]], Stopping(ignore_eos=True))
    assert (kept, "".join(texts), reason) == ([*word, EOS, *word], "oneone", None)


def test_a_stop_token_ends_a_text_inside_a_block(tokenizer: PreTrainedTokenizerFast) -> None:
    a, b, c = (tokenizer.encode(letter)[0] for letter in "abc")
    kept, texts, reason = run(tokenizer, [[a, b, c, a]], Stopping(stop_token_ids=[c], ignore_eos=True))
    assert (kept, "".join(texts), reason) == ([a, b, c], "ab", "stop")


@pytest.mark.parametrize("most", [1, 2, 3, 4])
def test_the_number_of_tokens_is_cut_inside_a_block(tokenizer: PreTrainedTokenizerFast, most: int) -> None:
    tokens = [tokenizer.encode(letter)[0] for letter in "abcd"]
    kept, texts, reason = run(tokenizer, [tokens[:1], tokens[1:], tokens], Stopping(), most)
    assert (kept, "".join(texts), reason) == (tokens[:most], "abcd"[:most], "length")


def test_a_stop_token_that_is_also_the_last_one_counts_as_stop(tokenizer: PreTrainedTokenizerFast) -> None:
    assert run(tokenizer, [[EOS]], Stopping(), most=1)[2] == "stop"


@pytest.mark.parametrize("size", [1, 2, 3, 100])
def test_a_stop_string_over_several_tokens_and_blocks(tokenizer: PreTrainedTokenizerFast, size: int) -> None:
    tokens = [tokenizer.encode(letter)[0] for letter in "one END two"]
    blocks = [tokens[start : start + size] for start in range(0, len(tokens), size)]
    kept, texts, reason = run(tokenizer, blocks, Stopping(stop=["END"]))
    assert ("".join(texts), reason) == ("one ", "stop")
    assert kept == tokens[:7], "the token that completes the stop string is the last"


def test_the_beginning_of_a_stop_string_is_held_back(tokenizer: PreTrainedTokenizerFast) -> None:
    tokens = [tokenizer.encode(letter)[0] for letter in "aENDx"]
    assert run(tokenizer, each(tokens), Stopping(stop=["ENDE"]))[1] == ["a", "", "", "", "ENDx", ""]
    assert run(tokenizer, each(tokens[:3]), Stopping(stop=["END"]))[1] == ["a", "", "", "EN"], "given out at the end"


def test_a_stop_string_that_overlaps_its_own_beginning(tokenizer: PreTrainedTokenizerFast) -> None:
    tokens = [tokenizer.encode(letter)[0] for letter in "aabaabX"]
    assert "".join(run(tokenizer, each(tokens), Stopping(stop=["aabX"]))[1]) == "aab"


def test_the_first_of_several_stop_strings_ends_a_text(tokenizer: PreTrainedTokenizerFast) -> None:
    tokens = [tokenizer.encode(letter)[0] for letter in "one, two; three"]
    for stop in ([";", ","], [",", ";"], [", two;", ","]):
        assert "".join(run(tokenizer, [tokens], Stopping(stop=stop))[1]) == "one"


def test_the_first_of_several_stop_strings_inside_one_token_ends_a_text(tokenizer: PreTrainedTokenizerFast) -> None:
    words = {token: tokenizer.decode([token]) for token in range(2, VOCAB_SIZE)}
    token, word = next((token, word) for token, word in words.items() if len(set(word)) == len(word) >= 3)
    assert "".join(run(tokenizer, [[token]], Stopping(stop=[word[2:], word[1:2]]))[1]) == word[0]


def test_a_stop_string_among_characters_of_several_tokens(tokenizer: PreTrainedTokenizerFast) -> None:
    tokens = tokenizer.encode("x👩é你")
    assert "".join(run(tokenizer, each(tokens), Stopping(stop=["é"]))[1]) == "x👩"


@pytest.mark.parametrize("seed", range(40))
def test_random_texts_stops_and_blocks(tokenizer: PreTrainedTokenizerFast, seed: int) -> None:
    """The text given out is the text before the first stop string to be completed; nothing is given out twice."""
    rng = random.Random(seed)
    text = "".join(rng.choice("ab😀") for _ in range(60))
    tokens = [token for letter in text for token in tokenizer.encode(letter)]
    stops = ["".join(rng.choice("ab😀") for _ in range(rng.randint(2, 5))) for _ in range(rng.randint(1, 3))]
    blocks, start = [], 0
    while start < len(tokens):
        size = rng.randint(1, 6)
        blocks.append(tokens[start : start + size])
        start += size
    ends = {end: stop for end in range(len(text), 0, -1) for stop in stops if text[:end].endswith(stop)}
    found = "".join(run(tokenizer, blocks, Stopping(stop=stops))[1])
    if not ends:
        assert found == text
    else:
        end = min(ends)
        assert found == min((text[: end - len(stop)] for stop in stops if text[:end].endswith(stop)), key=len)


def test_stop_strings_end_the_engines_text_whatever_the_step(llama: Engine) -> None:
    prompt = list(range(2, 40)) * 2
    whole = llama.generate(prompt, sampling=Sampling(temperature=0.0), stopping=Stopping(60, ignore_eos=True))
    for start in (0, 5, 12, len(whole.text) - 4):
        stop = whole.text[start : start + 3]
        if "�" in stop:
            continue
        found = llama.generate(
            prompt,
            decode=Lookahead(7, 5, 7),
            sampling=Sampling(temperature=0.0),
            stopping=Stopping(60, stop=[stop], ignore_eos=True),
        )
        assert found.text == whole.text[: whole.text.index(stop)]
        assert found.finish_reason == "stop"
        assert found.token_ids == whole.token_ids[: len(found.token_ids)]
