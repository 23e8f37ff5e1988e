"""The answers of a batch on their way through the exchange: what a replica sends, and what all get from it.

    P replicas, I integers of the replica with the most, L rows of a part, C columns of packed answers (Answers.pack)

A replica sends the packed answers of its parts, int32 [L, C] each, one behind the other in the order of the batch, and
zeros behind them up to I. Gathered, that is int32 [P, I]. C may differ from step to step.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence

import numpy as np

from lp.runner.runner import StepInput
from lp.tree import Answers
from parallel.runners.shares import Shares


def pack_all(
    steps: Sequence[StepInput], all_shares: Sequence[Shares], num_replicas: int, own: Iterable[Answers]
) -> np.ndarray:
    """What this replica sends: int32 [I]. own: its answers, in the order of its parts; some may be to no rows."""
    lengths = [0] * num_replicas
    for step, shares in zip(steps, all_shares, strict=True):
        for replica, rows in shares.rows.items():
            lengths[replica] += len(rows) * step.num_columns
    payload = np.zeros(max(lengths), np.int32)
    begin = 0
    for answers in own:
        if len(answers.targets):
            packed = answers.pack().ravel()
            payload[begin : begin + len(packed)] = packed
            begin += len(packed)
    return payload


def merge_all(steps: Sequence[StepInput], all_shares: Sequence[Shares], gathered: np.ndarray) -> list[Answers]:
    """The answers of each step. gathered: int32 [P, I]. If a row is in several parts, the lowest replica's counts."""
    begins = [0] * len(gathered)
    merged: list[Answers] = []
    for step, shares in zip(steps, all_shares, strict=True):
        if not len(step.tree):
            merged.append(Answers.none())
            continue
        num_columns = step.num_columns
        packed = np.empty((len(step.tree), num_columns), np.int32)
        for replica, rows in sorted(shares.rows.items(), reverse=True):
            begin, end = begins[replica], begins[replica] + len(rows) * num_columns
            packed[rows] = gathered[replica, begin:end].reshape(-1, num_columns)
            begins[replica] = end
        merged.append(step.unpack(packed))
    return merged


def fingerprint_of(steps: Sequence[StepInput]) -> int:
    """One checksum of the states of all sequences in a batch; 0 if there are none."""
    if len(steps) == 1:
        return steps[0].fingerprint
    fingerprints = np.array([step.fingerprint for step in steps], np.int64)
    return zlib.crc32(fingerprints.tobytes()) if fingerprints.any() else 0
