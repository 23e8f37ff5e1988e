"""The model's answers, its best tokens, by the last two tokens of the path that it answered and by the last one.

The newest answers of running requests are kept in bounded memory. An index of answers in a file is made once for a
model (launch/index.py), so that decode=auto has drafts after tokens that a text has not had yet. Whatever it holds, the
output stays the same: it only proposes drafts.

    R rows, P pairs of tokens, T single tokens, K candidates of each answer
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from lp.drafting.ngrams import BITS, OFFSET, last_token, mask
from lp.platform.disk_cache import checksum

TOKEN, PAIR = mask(1), mask(2)
# Most answers kept by two tokens, and by one; the oldest are dropped first.
CAPACITY = 1 << 17
# Name of the file beside a checkpoint's weights. It is a safetensors file, but must not be taken for one of weights.
FILE_NAME = "lookahead.index"
# To be raised when the arrays of an existing file would have another meaning.
FORMAT = "lookahead-parallel answers 1"
# The names of its arrays; see AnswerIndex.
ARRAYS = ("pairs", "pair_answers", "tokens", "token_answers")


class NewestAnswers:
    """The newest answers after two tokens and after one, in bounded memory.

    pairs, tokens: answers by contexts of two tokens and of one (see ngrams.py), best token first.
    """

    def __init__(self, capacity: int = CAPACITY):
        self.capacity = capacity
        self.pairs: dict[int, tuple[int, ...]] = {}
        self.tokens: dict[int, tuple[int, ...]] = {}

    def __len__(self) -> int:
        return len(self.pairs) + len(self.tokens)

    def add(self, pairs: Sequence[int], best: Sequence[tuple[int, ...]], right_rows: Sequence[int]) -> None:
        """Keeps the answers of rows, and drops the oldest where there are too many.

        pairs: [R] the context of two tokens in which each row's path ends. best: [R] answers. right_rows: see `put`.
        """
        put(self.pairs, pairs, best, right_rows)
        put(self.tokens, [pair & TOKEN for pair in pairs], best, right_rows)
        self.trim()

    def trim(self) -> None:
        """Drops the oldest answers where there are too many."""
        for table in (self.pairs, self.tokens):
            while len(table) > self.capacity:
                del table[next(iter(table))]


class AnswerIndex:
    """Answers that do not change, as read from a file.

    name: the model that gave them. digest: a checksum of the file, equal on all ranks that read the same one. pairs,
    tokens: [P] and [T] int64, contexts of two tokens and of one (see ngrams.py). pair_answers, token_answers: [P, K]
    and [T, K] int32.
    """

    def __init__(self, name: str, digest: str, arrays: Mapping[str, np.ndarray]):
        """arrays: pairs [P, 2], pair_answers [P, K], tokens [T], token_answers [T, K], all int32."""
        self.name, self.digest = name, digest
        self.pair_answers, self.token_answers = arrays["pair_answers"], arrays["token_answers"]
        self.pairs = (arrays["pairs"].astype(np.int64) + OFFSET) @ np.array([1 << BITS, 1])
        self.tokens = arrays["tokens"].astype(np.int64) + OFFSET

    @property
    def num_pairs(self) -> int:
        return len(self.pairs)

    @property
    def num_tokens(self) -> int:
        return len(self.tokens)

    def newest(self, capacity: int) -> NewestAnswers:
        """The same answers, to which others can be added."""
        found = NewestAnswers(capacity)
        found.pairs.update(zip(self.pairs.tolist(), map(tuple, self.pair_answers.tolist()), strict=True))
        found.tokens.update(zip(self.tokens.tolist(), map(tuple, self.token_answers.tolist()), strict=True))
        return found


def put(
    table: dict[int, tuple[int, ...]],
    keys: Sequence[int],
    best: Sequence[tuple[int, ...]],
    right_rows: Iterable[int],
) -> None:
    """Puts the answers of rows into a table.

    keys: [R]. best: [R] answers. Of several rows with the same key, the last of `right_rows` among them is kept, or
    else the first row.
    """
    table.update(zip(reversed(keys), reversed(best), strict=True))
    for row in right_rows:
        table[keys[row]] = best[row]


def write_index(
    path: Path,
    name: str,
    vocab_size: int,
    pairs: Mapping[int, tuple[int, ...]],
    tokens: Mapping[int, tuple[int, ...]],
) -> None:
    """Writes an index, whole or not at all. Raises OSError.

    name, vocab_size: the model's. pairs, tokens: [K] answers by contexts of two tokens and of one, as in NewestAnswers.
    """
    arrays = {
        "pairs": np.array([[last_token(pair >> BITS), last_token(pair)] for pair in pairs], np.int32).reshape(-1, 2),
        "pair_answers": _rows(pairs.values()),
        "tokens": np.array([last_token(token) for token in tokens], np.int32),
        "token_answers": _rows(tokens.values()),
    }
    written = path.with_name(f".{path.name}.unfinished")
    try:
        save_file(arrays, written, {"format": FORMAT, "model": name, "vocab_size": str(vocab_size)})
        written.replace(path)
    except SafetensorError as error:
        raise OSError(f"{path} cannot be written: {error}") from None
    finally:
        written.unlink(missing_ok=True)


def read_index(path: Path, vocab_size: int) -> AnswerIndex:
    """Reads an index for a model with that many tokens. Raises ValueError with a message for the user."""
    fix = "make it anew with launch/index.py, or use index=off"
    try:
        with safe_open(path, "np") as file:
            facts = file.metadata() or {}
            is_known = facts.get("format") == FORMAT
            arrays = {name: file.get_tensor(name) for name in ARRAYS if is_known}
        digest = checksum(path)
    except (OSError, SafetensorError) as error:
        raise ValueError(f"index={path} cannot be read ({error}); {fix}") from None
    if not is_known or not _is_sound(arrays):
        raise ValueError(f"index={path} is not an index of this version; {fix}")
    if facts.get("vocab_size") != str(vocab_size) or _has_others(arrays, vocab_size):
        raise ValueError(
            f"index={path} was made for {facts.get('model')} with {facts.get('vocab_size')} tokens, "
            f"and this model has {vocab_size}; {fix}"
        )
    return AnswerIndex(facts.get("model", ""), digest, arrays)


def _rows(answers: Iterable[tuple[int, ...]]) -> np.ndarray:
    """[N, K] answers; those with fewer candidates than the longest repeat their last one."""
    rows = list(answers)
    longest = max(map(len, rows), default=1)
    return np.array([(*row, *row[-1:] * (longest - len(row))) for row in rows], np.int32).reshape(-1, longest)


def _is_sound(arrays: Mapping[str, np.ndarray]) -> bool:
    """Whether the arrays are those of an index, and their lengths fit each other."""
    if any(array.dtype != np.int32 for array in arrays.values()):
        return False
    pairs, pair_answers, tokens, token_answers = (arrays[name] for name in ARRAYS)
    shapes_fit = pairs.shape == (len(pairs), 2) and tokens.shape == (len(tokens),)
    return shapes_fit and all(
        answers.ndim == 2 and answers.shape[1] > 0 and len(answers) == len(keys)
        for keys, answers in ((pairs, pair_answers), (tokens, token_answers))
    )


def _has_others(arrays: Mapping[str, np.ndarray], vocab_size: int) -> bool:
    """Whether there is something that is not a token. In pairs, -1 stands for what is before a text's first token."""
    lowest = {name: array.min(initial=0) for name, array in arrays.items()}
    too_low = lowest.pop("pairs") < -1 or min(lowest.values()) < 0
    return too_low or max(array.max(initial=0) for array in arrays.values()) >= vocab_size
