"""Makes a corpus of texts: their token ids, and the places of all tokens sorted by what follows.

N token ids of all texts, V tokens of the vocabulary
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from lp.drafting.contexts import LONGEST
from lp.drafting.corpus.file import Corpus, digest_of_arrays

# Tokens by which places are told apart, at least: the longest match and the token after it. A power of two.
SORTED_BY = 16
assert SORTED_BY > LONGEST


def build_corpus(name: str, vocab_size: int, texts: Iterable[Sequence[int] | np.ndarray]) -> Corpus:
    """A corpus of texts. Raises ValueError if they have no token.

    name: the model's. texts: token ids below `vocab_size` of each text.
    """
    kind = np.uint16 if vocab_size <= np.iinfo(np.uint16).max else np.uint32
    parts = [np.append(np.asarray(text, kind), kind(vocab_size)) for text in texts if len(text)]
    if not parts:
        raise ValueError("the corpus has no text")
    ids = np.concatenate(parts)
    order = sorted_places(ids)
    places = order[ids[order] < vocab_size].astype(np.uint32)
    first = np.searchsorted(ids[places], np.arange(vocab_size + 1)).astype(np.uint32)
    arrays = {"ids": ids, "places": places, "first": first}
    return Corpus(name, digest_of_arrays(arrays), ids, places, first)


def sorted_places(ids: np.ndarray) -> np.ndarray:
    """[N] all places in `ids`, sorted by the next SORTED_BY tokens; equal ones in the order of the text.

    Prefix doubling (Manber and Myers 1993): ranks by the next n tokens, in pairs, give ranks by the next 2 n.
    """
    ranks, length = ids.astype(np.int64) + 1, 1
    while length < SORTED_BY:
        after = np.zeros_like(ranks)  # 0 is beyond the end
        after[:-length] = ranks[length:]
        pairs = ranks * (ranks.max() + 1) + after
        ranks = np.unique(pairs, return_inverse=True)[1].astype(np.int64) + 1
        length *= 2
    return np.argsort(ranks, kind="stable")
