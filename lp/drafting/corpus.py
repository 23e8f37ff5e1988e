"""A corpus of texts as token ids with a suffix array, in a file that is mapped into memory, as in REST (He et al. 2023,
arXiv 2311.08252).

It is made once from text files (launch/index.py), so that decode=auto can draft what followed the same tokens there.
Whatever it holds, the output stays the same: it only proposes drafts. It never changes, so all requests share it.

    N token ids of all texts, P places in them, V tokens of the vocabulary
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from lp.drafting.ngrams import LONGEST

# Name of the file beside a checkpoint's weights. It is a safetensors file, but must not be taken for one of weights.
FILE_NAME = "lookahead.corpus"
# To be raised when the arrays of an existing file would have another meaning.
FORMAT = "lookahead-parallel corpus 1"
# The names of its arrays; see Corpus.
ARRAYS = ("ids", "places", "first")
# Bytes of the number at the start of a safetensors file: the length of the header behind it.
LENGTH_BYTES = 8
# Tokens that are counted at once, which takes 8 bytes of memory for each.
PART = 1 << 20
# Tokens by which places are told apart, at least: the longest match and the token after it. A power of two.
SORTED_BY = 16
assert SORTED_BY > LONGEST
# Of a match with more places than these, so many of them, evenly spread, are looked at.
MOST_PLACES = 64
# Where a corpus does not help, it rests, so that it is not searched in vain. Steps with drafts of a trial, in one of
# which it must be the source of an accepted draft. One token in so many steps is about what the searches cost where a
# step takes a millisecond; it is much more than that on a CPU.
TRIAL_STEPS = 32
# Steps with drafts of the first rest. Each rest without a helpful trial in between is twice as long as the one before.
FIRST_REST, LONGEST_REST = 32, 256


@dataclass(frozen=True)
class Corpus:
    """Texts that do not change.

    name: the model whose tokenizer made the ids. digest: a checksum of the arrays. ids: [N] uint16 or uint32 token ids
    of all texts, with V behind each text. places: [P] uint32, the places of all tokens in `ids`, sorted by the tokens
    from there on. first: [V + 1] uint32; the places of token t are `places[first[t] : first[t + 1]]`.
    """

    name: str
    digest: str
    ids: np.ndarray
    places: np.ndarray
    first: np.ndarray

    @property
    def vocab_size(self) -> int:
        return len(self.first) - 1


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


def vocabulary_digest(tokens: Mapping[str, int]) -> str:
    """A checksum of a vocabulary. tokens: ids by token."""
    return hashlib.sha256(json.dumps(sorted(tokens.items())).encode()).hexdigest()[:20]


def write_corpus(path: Path, corpus: Corpus, vocabulary: str) -> None:
    """Writes a corpus, whole or not at all. Raises OSError. vocabulary: see `vocabulary_digest`."""
    facts = {
        "format": FORMAT, "model": corpus.name, "vocab_size": str(corpus.vocab_size),
        "vocabulary": vocabulary, "digest": corpus.digest,
    }  # fmt: skip
    written = path.with_name(f".{path.name}.unfinished")
    try:
        save_file({name: getattr(corpus, name) for name in ARRAYS}, written, facts)
        written.replace(path)
    except SafetensorError as error:
        raise OSError(f"{path} cannot be written: {error}") from None
    finally:
        written.unlink(missing_ok=True)


def read_corpus(path: Path, vocab_size: int, vocabulary: str) -> Corpus:
    """Maps a corpus into memory, for a model with that many tokens. Raises ValueError with a message for the user."""
    fix = "make it anew with launch/index.py corpus=FILES, or use corpus=off"
    try:
        with safe_open(path, "np") as file:
            facts = file.metadata() or {}
        arrays = _map(path) if facts.get("format") == FORMAT else {}
    except (OSError, SafetensorError) as error:
        raise ValueError(f"corpus={path} cannot be read ({error}); {fix}") from None
    if set(arrays) != set(ARRAYS) or not _fit(arrays):
        raise ValueError(f"corpus={path} is not a corpus of this version; {fix}")
    if (facts.get("vocab_size"), facts.get("vocabulary")) != (str(vocab_size), vocabulary):
        raise ValueError(
            f"corpus={path} was made for {facts.get('model')} with {facts.get('vocab_size')} tokens, and this model "
            f"has another vocabulary ({vocab_size} tokens); {fix}"
        )
    if len(arrays["first"]) != vocab_size + 1 or arrays["ids"][-1] != vocab_size:
        raise ValueError(f"corpus={path} is damaged: it does not have the {vocab_size} tokens that it names; {fix}")
    if facts.get("digest") != digest_of_arrays(arrays):
        raise ValueError(f"corpus={path} is damaged: its checksum does not fit; {fix}")
    if not _is_sound(arrays, vocab_size):
        raise ValueError(f"corpus={path} is damaged: its places are not those of its tokens; {fix}")
    return Corpus(facts.get("model", ""), facts["digest"], **arrays)


def digest_of_arrays(arrays: Mapping[str, np.ndarray]) -> str:
    """A checksum of a corpus' arrays."""
    found = hashlib.sha256()
    for name in ARRAYS:
        found.update(f"{name} {arrays[name].dtype} {len(arrays[name])};".encode())
        found.update(np.ascontiguousarray(arrays[name]).data)
    return found.hexdigest()


def _map(path: Path) -> dict[str, np.ndarray]:
    """The arrays of a safetensors file that `safe_open` has found sound, mapped instead of copied."""
    with path.open("rb") as stream:
        length = int.from_bytes(stream.read(LENGTH_BYTES), "little")
        header = json.loads(stream.read(length))
    kinds = {"U16": np.uint16, "U32": np.uint32}
    found = {}
    header.pop("__metadata__", None)
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        if entry["dtype"] in kinds and len(entry["shape"]) == 1 and end > begin:
            offset = LENGTH_BYTES + length + begin
            found[name] = np.memmap(path, kinds[entry["dtype"]], "r", offset, tuple(entry["shape"]))
    return found


def _fit(arrays: Mapping[str, np.ndarray]) -> bool:
    """Whether the arrays have the types and lengths of a corpus."""
    ids, places, first = (arrays[name] for name in ARRAYS)
    return places.dtype == first.dtype == np.uint32 and len(places) < len(ids) and first[-1] == len(places)


def _is_sound(arrays: Mapping[str, np.ndarray], vocab_size: int) -> bool:
    """Whether the places are those of the tokens, as far as one pass over each array tells; the library checks nothing.

    The last of `ids` must be the end of a text (see `read_corpus`). That the places are sorted is looked at for their
    first tokens, once for each token of the vocabulary.
    """
    ids, places, first = (arrays[name] for name in ARRAYS)
    if ids.max() > vocab_size or places.max() >= len(ids):
        return False
    counts = np.zeros(vocab_size + 1, np.int64)
    for begin in range(0, len(ids), PART):
        counts += np.bincount(ids[begin : begin + PART], minlength=vocab_size + 1)
    counts = counts[:vocab_size]
    if first[0] != 0 or not np.array_equal(np.cumsum(counts), first[1:]):
        return False
    tokens = np.flatnonzero(counts)
    return all(np.array_equal(ids[places[ends]], tokens) for ends in (first[tokens], first[tokens + 1] - 1))
