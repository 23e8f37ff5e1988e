"""An index comes back from its file as it was, the longer match counts, and a file that is no index is refused."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from lp.drafting.answer_index import FORMAT, NewestAnswers, read_index, write_index
from lp.drafting.history import DraftHistory
from lp.drafting.ngrams import NO_TOKEN, context_of, pairs
from lp.methods.auto.method import Auto
from tests.lp.drafting.reference.sources import IndexedAnswers, SequenceStart
from tests.lp.drafting.rule_models import counting, decode

VOCAB_SIZE = 50


def after(token: int) -> int:
    return context_of([token]) & 0x1FFFFF


def write(path: Path) -> Path:
    by_two = {pairs([1], [2])[0]: (3, 4, 5), pairs([NO_TOKEN], [7])[0]: (8, 9, 10)}
    write_index(path, "test", VOCAB_SIZE, by_two, {after(2): (6, 7, 8), after(0): (1, 49, 0)})
    return path


def test_what_was_written_is_read(tmp_path: Path) -> None:
    index = read_index(write(tmp_path / "index"), VOCAB_SIZE)
    assert (index.name, index.num_pairs, index.num_tokens) == ("test", 2, 2)
    found = index.newest(capacity=10)
    assert found.pairs == {pairs([1], [2])[0]: (3, 4, 5), pairs([NO_TOKEN], [7])[0]: (8, 9, 10)}
    assert found.tokens == {after(2): (6, 7, 8), after(0): (1, 49, 0)}
    assert index.digest != read_index(write_other(tmp_path / "other"), VOCAB_SIZE).digest
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def write_other(path: Path) -> Path:
    write_index(path, "test", VOCAB_SIZE, {}, {after(2): (6,)})
    return path


def test_more_answers_can_be_added(tmp_path: Path) -> None:
    found = read_index(write(tmp_path / "index"), VOCAB_SIZE).newest(capacity=10)
    found.add(pairs([1, 5], [2, 6]), [(9, 9, 9), (8, 8, 8)], [])
    write_index(tmp_path / "more", "test", VOCAB_SIZE, found.pairs, found.tokens)
    again = read_index(tmp_path / "more", VOCAB_SIZE).newest(capacity=10)
    assert (again.pairs, again.tokens) == (found.pairs, found.tokens)
    assert found.pairs[pairs([1], [2])[0]] == (9, 9, 9) and found.tokens[after(6)] == (8, 8, 8)
    assert found.pairs[pairs([NO_TOKEN], [7])[0]] == (8, 9, 10)


def test_the_longer_match_is_proposed_and_no_more_than_the_settings_say(tmp_path: Path) -> None:
    index = read_index(write(tmp_path / "index"), VOCAB_SIZE)
    start = SequenceStart(Auto(candidates=2), [1], is_sampled=False, index=index)
    source = IndexedAnswers.begin(start)
    assert source is not None
    assert source.propose(context_of([1, 2]), 0) == [(0, (3, 4))]
    assert source.propose(context_of([5, 2]), 0) == [(2, (6, 7))]
    assert source.propose(context_of([5]), 0) == []
    assert IndexedAnswers.begin(SequenceStart(Auto(index_drafts=False), [1], False, index=index)) is None


def test_drafts_come_from_the_index_alone(tmp_path: Path) -> None:
    """`counting` answers with the next number, which the index knows for half of them."""
    tokens = {after(token): ((token + 1) % 50,) for token in range(0, 50, 2)}
    write_index(tmp_path / "index", "test", VOCAB_SIZE, {}, tokens)
    history = DraftHistory(index=read_index(tmp_path / "index", VOCAB_SIZE))
    settings = Auto(False, False, False, rows=16)
    run = decode(counting, 40, settings, history=history)
    assert set(run.accepted) == {"index"} and 1.5 < run.tokens_per_step <= 2
    assert decode(counting, 40, settings).tokens == run.tokens


def test_newest_answers_are_bounded() -> None:
    found = NewestAnswers(capacity=2)
    found.add(pairs([1, 3, 5], [2, 4, 6]), [(1,), (2,), (3,)], [])
    assert len(found.pairs) == len(found.tokens) == 2


ARRAYS = {
    "pairs": np.zeros((1, 2), np.int32),
    "pair_answers": np.zeros((1, 3), np.int32),
    "tokens": np.zeros(1, np.int32),
    "token_answers": np.zeros((1, 3), np.int32),
}
FACTS = {"format": FORMAT, "model": "test", "vocab_size": str(VOCAB_SIZE)}


def refusal(path: Path, arrays: Mapping[str, np.ndarray], facts: Mapping[str, str]) -> str:
    save_file(dict(arrays), path, dict(facts))
    with pytest.raises(ValueError) as error:
        read_index(path, VOCAB_SIZE)
    assert "launch/index.py" in str(error.value) and "index=off" in str(error.value)
    return str(error.value)


def test_files_that_cannot_be_used_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "index"
    save_file(ARRAYS, path, FACTS)
    assert read_index(path, VOCAB_SIZE).num_tokens == 1, "else the refusals below prove nothing"
    assert "not an index of this version" in refusal(path, ARRAYS, {**FACTS, "format": "older"})
    assert "not an index of this version" in refusal(path, {**ARRAYS, "tokens": np.zeros(2, np.int32)}, FACTS)
    assert "not an index of this version" in refusal(path, {**ARRAYS, "tokens": np.zeros(1, np.int64)}, FACTS)
    assert "made for test with 99 tokens" in refusal(path, ARRAYS, {**FACTS, "vocab_size": "99"})
    assert "this model has 50" in refusal(path, {**ARRAYS, "tokens": np.full(1, 50, np.int32)}, FACTS)
    assert "this model has 50" in refusal(path, {**ARRAYS, "pair_answers": np.full((1, 3), -1, np.int32)}, FACTS)
    assert "cannot be read" in refusal(path, {"pairs": ARRAYS["pairs"]}, FACTS)


def test_a_missing_and_a_broken_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="cannot be read"):
        read_index(tmp_path / "missing", VOCAB_SIZE)
    broken = tmp_path / "broken"
    broken.write_bytes(write(tmp_path / "index").read_bytes()[:40])
    with pytest.raises(ValueError, match="cannot be read"):
        read_index(broken, VOCAB_SIZE)
