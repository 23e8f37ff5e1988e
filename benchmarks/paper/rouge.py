"""ROUGE of generated summaries. The paper's table 2 uses it to compare lookahead sampling with plain sampling."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

try:
    from rouge_score.rouge_scorer import RougeScorer
except ImportError as error:
    raise ImportError("ROUGE needs rouge-score: pip install 'lookahead-parallel[bench]'") from error

# What is scored: words, pairs of words, longest common subsequences. Names of the library, and of papers.
KINDS = {"rouge1": "ROUGE-1", "rouge2": "ROUGE-2", "rougeL": "ROUGE-L"}


def rouge(predictions: Sequence[str], references: Sequence[str]) -> dict[str, float]:
    """Mean F1 in percent, by the names that papers use (KINDS).

    English words are reduced to their stems, as is usual for summaries (option -m of the original ROUGE 1.5.5).
    Raises ValueError if there are no texts, or if there are not as many references.
    """
    if not predictions or len(predictions) != len(references):
        raise ValueError(f"{len(predictions)} texts cannot be compared with {len(references)} references")
    scorer = RougeScorer(list(KINDS), use_stemmer=True)
    scores = [scorer.score(target=reference, prediction=text) for text, reference in zip(predictions, references)]
    return {name: 100 * fmean(score[kind].fmeasure for score in scores) for kind, name in KINDS.items()}
