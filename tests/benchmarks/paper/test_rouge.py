"""ROUGE agrees with values computed by hand, and bad input is refused."""

from __future__ import annotations

import importlib
import sys

import pytest

from benchmarks.paper.rouge import rouge


def test_shares_of_words_pairs_and_subsequences() -> None:
    # 5 of 6 words; the pairs "the cat", "on the", "the mat" of 5; "the cat on the mat" is the longest subsequence.
    scores = rouge(["the cat sat on the mat"], ["The cat lay on the mat."])
    assert scores == pytest.approx({"ROUGE-1": 100 * 5 / 6, "ROUGE-2": 60.0, "ROUGE-L": 100 * 5 / 6})


def test_f1_weighs_precision_and_recall() -> None:
    # 2 of the text's 2 words and 2 of the reference's 6: F1 = 2 * 1 * (1/3) / (1 + 1/3). Pairs: 0 of 1, 0 of 5.
    scores = rouge(["rain harbour"], ["rain fell all over the harbour"])
    assert scores == pytest.approx({"ROUGE-1": 50.0, "ROUGE-2": 0.0, "ROUGE-L": 50.0})


def test_order_counts_for_subsequences_alone() -> None:
    scores = rouge(["gunman the killed police"], ["police killed the gunman"])
    assert scores == pytest.approx({"ROUGE-1": 100.0, "ROUGE-2": 0.0, "ROUGE-L": 25.0})


def test_words_are_compared_by_their_stems() -> None:
    assert rouge(["the trains stopped"], ["the train stops"])["ROUGE-2"] == pytest.approx(100.0)


def test_texts_count_alike_and_an_empty_one_counts_nothing() -> None:
    scores = rouge(["a red house", ""], ["a red house", "a blue boat"])
    assert scores == pytest.approx({"ROUGE-1": 50.0, "ROUGE-2": 50.0, "ROUGE-L": 50.0})


@pytest.mark.parametrize(("texts", "references"), [([], []), (["a"], ["a", "b"])])
def test_texts_without_references_are_refused(texts: list[str], references: list[str]) -> None:
    with pytest.raises(ValueError, match=f"{len(texts)} texts cannot be compared with {len(references)} references"):
        rouge(texts, references)


def test_a_missing_library_is_named_with_the_extra_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rouge_score.rouge_scorer", None)
    monkeypatch.delitem(sys.modules, "benchmarks.paper.rouge")
    with pytest.raises(ImportError, match=r"pip install 'lookahead-parallel\[bench\]'"):
        importlib.import_module("benchmarks.paper.rouge")


def test_rouge_of_known_texts() -> None:
    scores = rouge(["the cat sat", "dogs"], ["the cat ran", "dogs"])
    assert scores["ROUGE-1"] == pytest.approx(100 * (2 / 3 + 1) / 2)
    assert scores["ROUGE-2"] == pytest.approx(100 * (1 / 2 + 0) / 2)  # one word has no pairs
    assert scores["ROUGE-L"] == pytest.approx(100 * (2 / 3 + 1) / 2)
    with pytest.raises(ValueError, match="1 texts cannot be compared with 2 references"):
        rouge(["a"], ["a", "b"])
