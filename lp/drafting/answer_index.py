"""An index of a model's answers in a file: its best tokens after every token, and after pairs of tokens of some texts.

It is made once for a model (launch/index.py), so that decode=auto has drafts after tokens that a text has not had yet.
Whatever it holds, the output stays the same: it only proposes drafts.

    P pairs of tokens, T single tokens, K candidates of each answer
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from lp.drafting.answers import AnswerIndex, priors
from lp.drafting.base import Observation, Proposals, SequenceStart
from lp.drafting.contexts import BITS, last_token
from lp.methods import Auto
from lp.platform import disk_cache

# Name of the file beside a checkpoint's weights. It is a safetensors file, but must not be taken for one of weights.
FILE_NAME = "lookahead.index"
# To be raised when the arrays of an existing file would have another meaning.
FORMAT = "lookahead-parallel answers 1"
# The names of its arrays; see AnswerIndex.
ARRAYS = ("pairs", "pair_answers", "tokens", "token_answers")
# The probability assumed for the best candidate after two tokens and after one, before any has been seen.
AFTER_TWO, AFTER_ONE = 0.3, 0.2


class IndexedAnswers:
    """See DraftSource. Its kinds are the number of tokens that match, two or one, and the candidate's rank."""

    name = "index"

    def __init__(self, index: AnswerIndex, num_candidates: int):
        self._index = index
        self._num_candidates = num_candidates

    @staticmethod
    def kinds(settings: Auto) -> list[float]:
        return [*priors(AFTER_TWO, settings.candidates), *priors(AFTER_ONE, settings.candidates)]

    @classmethod
    def begin(cls, start: SequenceStart) -> IndexedAnswers | None:
        if start.index is None or not start.settings.index_drafts:
            return None
        return cls(start.index, start.settings.candidates)

    def propose(self, path: int, position: int) -> Proposals:
        if (best := self._index.after_two(path)) is not None:
            return [(0, best[: self._num_candidates])]
        if (best := self._index.after_one(path)) is not None:
            return [(self._num_candidates, best[: self._num_candidates])]
        return []

    def learn(self, observation: Observation) -> None:
        """An index does not change."""


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
    mend = "make it anew with launch/index.py, or use index=off"
    try:
        with safe_open(path, "np") as file:
            facts = file.metadata() or {}
            is_known = facts.get("format") == FORMAT
            arrays = {name: file.get_tensor(name) for name in ARRAYS if is_known}
        digest = disk_cache.checksum(path)
    except (OSError, SafetensorError) as error:
        raise ValueError(f"index={path} cannot be read ({error}); {mend}") from None
    if not is_known or not _is_sound(arrays):
        raise ValueError(f"index={path} is not an index of this version; {mend}")
    if facts.get("vocab_size") != str(vocab_size) or _has_others(arrays, vocab_size):
        raise ValueError(
            f"index={path} was made for {facts.get('model')} with {facts.get('vocab_size')} tokens, "
            f"and this model has {vocab_size}; {mend}"
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
