"""Keeps tokens that a grammar does not allow from being chosen, for the rows of many sequences at once.

Masks are bits until they reach the device, 6 KB for each row of 50,000 tokens. Nothing waits for them: the host finds
them after it has given the device the forward.

    R rows of a sequence, V vocabulary, W words of 32 tokens
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from lp.grammar.state import Masks
from lp.platform.hardware import upload
from lp.tree import DEAD_END, Answers


def forbid(masks: Masks, banned: Sequence[Sequence[int]]) -> None:
    """Takes tokens from what may follow. banned: of each row."""
    for row, tokens in enumerate(banned):
        for token in tokens if masks.is_bound[row] else ():
            masks.words[row, token >> 5] &= np.int32(~np.uint32(1 << (token & 31)).astype(np.int32))


def apply(scores_RV: Tensor, masked: Sequence[tuple[int, Masks]]) -> None:
    """Sets the scores of all tokens that may not follow to -inf, in place. Rows that are dead ends stay as they are.

    masked: for each sequence, the number of its first row and what may follow its rows.
    """
    for first, masks in masked:
        words = np.where(masks.words.any(axis=1, keepdims=True), masks.words, np.int32(-1))
        rows = scores_RV[first : first + len(words)]
        if rows.device.type == "cpu":
            bits = np.unpackbits(words.view(np.uint8), axis=1, count=rows.shape[1], bitorder="little")
            rows.masked_fill_(torch.from_numpy(bits) == 0, -torch.inf)
        else:
            shifts = torch.arange(32, dtype=torch.int32, device=rows.device)
            bits_RV = (upload(words, rows.device)[:, :, None] >> shifts & 1).flatten(1)[:, : rows.shape[1]]
            rows.masked_fill_(bits_RV == 0, -torch.inf)


def mend(answers: Answers, masks: Masks) -> Answers:
    """The answers of rows that were masked: those of dead ends are DEAD_END, and candidates that may not follow, where
    fewer may than were asked for, become the target.
    """
    targets = answers.targets
    candidates = targets[:, None] if answers.candidates is None else answers.candidates
    may_follow = np.take_along_axis(masks.words, np.maximum(candidates, 0).astype(np.int64) >> 5, axis=1)
    may_follow = may_follow >> (np.maximum(candidates, 0) & 31) & 1
    found = np.where(may_follow | (candidates < 0), candidates, candidates[:, :1])
    found[~masks.words.any(axis=1)] = DEAD_END
    answers.targets = found[:, 0]
    answers.candidates = None if answers.candidates is None else found
    return answers
