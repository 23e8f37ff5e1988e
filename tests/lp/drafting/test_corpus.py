"""A corpus finds what a search of all its text finds, comes back from its file as it was, and a bad file is refused."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from lp.drafting.account import CORPUS_LENGTHS
from lp.drafting.corpus import (
    ARRAYS,
    FORMAT,
    MOST_PLACES,
    SORTED_BY,
    Corpus,
    build_corpus,
    digest_of_arrays,
    read_corpus,
    sorted_places,
    vocabulary_digest,
    write_corpus,
)
from lp.drafting.history import DraftHistory
from lp.drafting.ngrams import FOLLOWERS, context_of
from lp.methods.auto.method import Auto
from tests.lp.drafting.reference.sources import CorpusDrafts, SequenceStart, find
from tests.lp.drafting.rule_models import PROMPT, counting, decode
from tests.lp.drafting.rule_models import VOCAB_SIZE as NUMBERS

VOCAB_SIZE = 6
WORDS = vocabulary_digest({str(token): token for token in range(VOCAB_SIZE)})
TEXTS = st.lists(st.lists(st.integers(0, VOCAB_SIZE - 1), max_size=40), min_size=1, max_size=4).filter(any)


def by_search(texts: list[list[int]], path: list[int]) -> list[tuple[int, list[int]]]:
    """What the source proposes, found by comparing the path with every place of every text."""
    found: list[tuple[int, list[int]]] = []
    for number, length in enumerate(CORPUS_LENGTHS):
        wanted = path[-length:]
        if len(wanted) < length:
            break
        after = Counter(
            text[at + length] for text in texts for at in range(len(text) - length) if text[at : at + length] == wanted
        )
        if after:
            best = sorted(after, key=lambda token: (-after[token], token))[:FOLLOWERS]
            found = [(number * FOLLOWERS, best)]
    return found


@given(texts=TEXTS, path=st.lists(st.integers(0, VOCAB_SIZE - 1), min_size=1, max_size=10), cut=st.integers(0, 30))
def test_it_proposes_what_a_search_of_the_texts_finds(texts: list[list[int]], path: list[int], cut: int) -> None:
    corpus = build_corpus("test", VOCAB_SIZE, texts)
    source = CorpusDrafts(corpus)
    longest = max(texts, key=len)
    for one in (path, longest[: cut + 1] or path):
        begin, end = find(corpus, one[-2:])
        assert end - begin <= MOST_PLACES, "else only some places are counted"
        assert source.propose(context_of(one), 0) == by_search(texts, one)


@given(st.lists(st.integers(0, 2), min_size=1, max_size=60))
def test_places_are_sorted_by_what_follows(tokens: list[int]) -> None:
    ids = np.array(tokens, np.uint16)
    expected = sorted(range(len(tokens)), key=lambda place: (tokens[place : place + SORTED_BY], place))
    assert sorted_places(ids).tolist() == expected


def test_of_many_places_some_are_counted() -> None:
    texts = [[1, 2, 3]] * 300 + [[1, 2, 4]] * 100
    assert CorpusDrafts(build_corpus("test", VOCAB_SIZE, texts)).propose(context_of([1, 2]), 0) == [(0, [3, 4])]


def test_large_vocabularies_have_larger_ids() -> None:
    corpus = build_corpus("test", 70_000, [[69_999, 5, 68_000, 7]])
    assert corpus.ids.dtype == np.uint32
    assert CorpusDrafts(corpus).propose(context_of([69_999, 5]), 0) == [(0, [68_000])]


def test_texts_without_tokens_are_refused() -> None:
    with pytest.raises(ValueError, match="no text"):
        build_corpus("test", VOCAB_SIZE, [[], []])


def written(path: Path) -> Path:
    write_corpus(path, build_corpus("test", VOCAB_SIZE, [[1, 2, 3, 1, 2, 4], [5, 1, 2]]), WORDS)
    return path


def test_what_was_written_is_mapped_into_memory(tmp_path: Path) -> None:
    corpus = read_corpus(written(tmp_path / "corpus"), VOCAB_SIZE, WORDS)
    assert all(isinstance(getattr(corpus, name), np.memmap) for name in ARRAYS)
    assert (corpus.name, corpus.vocab_size, len(corpus.places)) == ("test", VOCAB_SIZE, 9)
    assert CorpusDrafts(corpus).propose(context_of([1, 2]), 0) == [(0, [3, 4])]
    assert [path.name for path in tmp_path.iterdir()] == ["corpus"]
    other = build_corpus("test", VOCAB_SIZE, [[1, 2, 3]])
    assert other.digest != corpus.digest


def test_it_is_left_out_where_the_settings_say_so(tmp_path: Path) -> None:
    corpus = read_corpus(written(tmp_path / "corpus"), VOCAB_SIZE, WORDS)
    assert CorpusDrafts.begin(SequenceStart(Auto(), [1], False, corpus=corpus)) is not None
    assert CorpusDrafts.begin(SequenceStart(Auto(corpus_drafts=False), [1], False, corpus=corpus)) is None
    assert CorpusDrafts.begin(SequenceStart(Auto(), [1], False)) is None


def test_a_text_that_only_the_corpus_has_is_drafted_and_accepted() -> None:
    """`counting` answers with the next number of fifty; the corpus has half of the numbers in a row."""
    corpus = build_corpus("test", NUMBERS, [range(25)])
    settings = Auto(window_drafts=False, suffix_drafts=False, recycled_drafts=False, rows=16)
    run = decode(counting, 100, settings, history=DraftHistory(corpus=corpus))
    without = decode(counting, 100, settings)
    assert run.tokens == without.tokens and run.tokens[: len(PROMPT)] == PROMPT
    assert set(run.accepted) == {"corpus"} and run.tokens_per_step > 1.4 > without.tokens_per_step == 1


def refusal(path: Path, vocab_size: int = VOCAB_SIZE, vocabulary: str = WORDS) -> str:
    with pytest.raises(ValueError) as error:
        read_corpus(path, vocab_size, vocabulary)
    assert "corpus=FILES" in str(error.value) and "corpus=off" in str(error.value)
    return str(error.value)


def changed(path: Path, **more: Any) -> Path:
    """The file with other arrays, or other facts, and a checksum that fits."""
    corpus = read_corpus(written(path), VOCAB_SIZE, WORDS)
    arrays = {name: np.array(more.pop(name, getattr(corpus, name))) for name in ARRAYS}
    facts = {"format": FORMAT, "model": "test", "vocab_size": str(VOCAB_SIZE), "vocabulary": WORDS}
    save_file(arrays, path, {**facts, "digest": digest_of_arrays(arrays), **more})
    return path


def test_files_that_cannot_be_used_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "corpus"
    assert read_corpus(changed(path), VOCAB_SIZE, WORDS).vocab_size == VOCAB_SIZE, "else this proves nothing"
    assert "not a corpus of this version" in refusal(changed(path, format="older"))
    assert "not a corpus of this version" in refusal(changed(path, places=np.zeros(3, np.uint32)))
    assert "not a corpus of this version" in refusal(changed(path, first=np.zeros(VOCAB_SIZE + 1, np.uint16)))
    assert "its checksum does not fit" in refusal(changed(path, digest="0"))
    assert "made for test with 6 tokens" in refusal(written(path), vocab_size=7)
    assert "another vocabulary" in refusal(written(path), vocabulary="other")
    save_file({"ids": load_file(path)["ids"]}, path, {"format": FORMAT})
    assert "not a corpus of this version" in refusal(path)


def test_arrays_that_do_not_fit_each_other_are_refused_whatever_their_checksum(tmp_path: Path) -> None:
    path = tmp_path / "corpus"
    ids, places, first = (np.array(getattr(read_corpus(written(path), VOCAB_SIZE, WORDS), name)) for name in ARRAYS)
    assert "6 tokens that it names" in refusal(changed(path, ids=np.append(ids, ids[:1])))
    assert "6 tokens that it names" in refusal(changed(path, first=np.append(first, first[-1:])))
    unsound = "its places are not those of its tokens"
    assert unsound in refusal(changed(path, places=np.full(9, 1000, np.uint32)))
    assert unsound in refusal(changed(path, ids=np.where(ids == 5, VOCAB_SIZE + 1, ids).astype(np.uint16)))
    assert unsound in refusal(changed(path, ids=np.where(ids == 5, 3, ids).astype(np.uint16)))
    assert unsound in refusal(changed(path, places=places[::-1].copy()))
    moved = first.copy()
    moved[2] += 1
    assert unsound in refusal(changed(path, first=moved))
    descending = first.copy()
    descending[1:3] = 9, 0
    assert unsound in refusal(changed(path, first=descending))


def test_files_of_others_are_refused(tmp_path: Path) -> None:
    """Whatever facts and arrays they have."""
    path = tmp_path / "corpus"
    save_file({"ids": np.zeros(3, np.float32)}, path, {"format": FORMAT, "dtype": "U16", "data_offsets": "ab"})
    assert "not a corpus of this version" in refusal(path)
    save_file({"weight": np.zeros((2, 2), np.float32)}, path)
    assert "not a corpus of this version" in refusal(path)


@pytest.mark.parametrize("length", [0, 5, 60, -3])
def test_missing_and_cut_files_are_refused(length: int, tmp_path: Path) -> None:
    assert "cannot be read" in refusal(tmp_path / "missing")
    cut = tmp_path / "cut"
    cut.write_bytes(written(tmp_path / "corpus").read_bytes()[:length])
    assert "cannot be read" in refusal(cut)


def test_one_changed_byte_is_noticed(tmp_path: Path) -> None:
    path = written(tmp_path / "corpus")
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    assert "damaged" in refusal(path)


def test_a_corpus_is_not_changed_by_what_it_is_asked(tmp_path: Path) -> None:
    corpus: Corpus = read_corpus(written(tmp_path / "corpus"), VOCAB_SIZE, WORDS)
    assert not any(getattr(corpus, name).flags.writeable for name in ARRAYS)
