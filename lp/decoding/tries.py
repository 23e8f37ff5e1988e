"""Merges the drafts of a step into one trie under the root, so that shared prefixes are computed once."""

from __future__ import annotations

from collections.abc import Iterable

from lp.decoding.ngrams import Continuation
from lp.tree import TreeBuilder


def merge(builder: TreeBuilder, continuations: Iterable[Continuation], max_depth: int) -> dict[int, str]:
    """Adds continuations under the root, cut at `max_depth`. Returns the source of each row that it added."""
    sources: dict[int, str] = {}
    rows: dict[tuple[int, int], int] = {}
    for tokens, source in continuations:
        parent = 0
        for token in tokens[:max_depth]:
            if (parent, token) not in rows:
                rows[parent, token] = builder.add(token, parent)
                sources[rows[parent, token]] = source
            parent = rows[parent, token]
    return sources
