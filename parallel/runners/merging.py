"""The answers of a batch as tables whose rows the replicas gather."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence

import numpy as np

from lp.runner.runner import StepInput
from lp.tree import Answers
from parallel.comm.rows import Table
from parallel.runners.shares import Shares


def tables_of(steps: Sequence[StepInput], all_shares: Sequence[Shares]) -> list[Table]:
    """Tables for the packed answers of each step, int32 [R, C] for R rows of its tree (see Answers.pack)."""
    return [
        Table(shares.rows, np.empty((len(step.tree), step.num_columns), np.int32))
        for step, shares in zip(steps, all_shares, strict=True)
    ]


def rows_of(own: Iterable[Answers]) -> list[np.ndarray]:
    """What a replica sends. own: its answers, in the order of its parts; some may be to no rows."""
    return [answers.pack() for answers in own if len(answers.targets)]


def answers_of(steps: Sequence[StepInput], tables: Sequence[Table]) -> list[Answers]:
    """The answers of each step. tables: those of `tables_of`, filled."""
    return [
        step.unpack(table.numbers) if len(step.tree) else Answers.none()
        for step, table in zip(steps, tables, strict=True)
    ]


def fingerprint_of(steps: Sequence[StepInput]) -> int:
    """One checksum of the states of all sequences in a batch; 0 if there are none."""
    if len(steps) == 1:
        return steps[0].fingerprint
    fingerprints = np.array([step.fingerprint for step in steps], np.int64)
    return zlib.crc32(fingerprints.tobytes()) if fingerprints.any() else 0
