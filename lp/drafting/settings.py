"""The settings of drafts from all sources. A request gives them as those of decode=auto."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class DraftSettings:
    """Which sources propose drafts, and how large trees and windows may be.

    window_drafts: use the window's n-grams. suffix_drafts: use the continuation of the longest match in prompt and
    output. recycled_drafts: use the best tokens that the model gave after the same token before. shared_drafts: use
    texts and answers of earlier requests of the same owner (a server's API key). index_drafts: use the model's answers
    that launch/index.py has collected in a file. corpus_drafts: use what followed the same last tokens in the texts of
    the engine's setting `corpus`. model_drafts: use what the second model of the engine's setting `draft` proposes, if
    there is one. max_rows: the most rows of a step. rows: use this many rows whatever they cost; 0 takes as many as pay
    off. max_window: W, the most columns of the window. ngram: N, tokens of the
    window's n-grams. candidates: the best tokens kept from each row's answer.
    """

    window_drafts: bool = True
    suffix_drafts: bool = True
    recycled_drafts: bool = True
    shared_drafts: bool = False
    index_drafts: bool = True
    corpus_drafts: bool = True
    model_drafts: bool = True
    max_rows: int = 128
    rows: int = 0
    max_window: int = 15
    ngram: int = 5
    candidates: int = 8
