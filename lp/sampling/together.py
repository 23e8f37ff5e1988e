"""Answers the rows of many sequences with few calls: those of samplers that choose alike are answered by one of them.

Which sequences share a step does not change what a row is answered.

    R rows of all sequences, V vocabulary
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from itertools import groupby, pairwise
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from lp.sampling.full_vocabulary import Rows
from lp.sampling.sampler import Sampler
from lp.tree import TokenTree
from lp.verification import Answers


class Asked(NamedTuple):
    """The rows of one sequence that are to be answered; see `Sampler.launch`."""

    sampler: Sampler
    tree: TokenTree
    tokens: Sequence[int]
    num_candidates: int

    @property
    def kind(self) -> Hashable:
        """What is equal for rows that one call may answer."""
        return self.sampler.chooses_alike(self.num_candidates) or id(self.sampler)


def side_by_side(asked: Sequence[Asked]) -> list[int]:
    """The numbers of all that is asked, those of a kind next to each other."""
    groups: dict[Hashable, list[int]] = {}
    for number, one in enumerate(asked):
        groups.setdefault(one.kind, []).append(number)
    return [number for group in groups.values() for number in group]


def launch_all(asked: Sequence[Asked], logits_RV: Tensor) -> Callable[[], list[Answers]]:
    """Gives the device its work for the answers to all rows: one call for neighbours of a kind. Returns what waits.

    logits_RV: float32 logits of the rows, those of the first sequence first.
    """
    pending: list[Callable[[], list[Answers]]] = []
    done = 0
    for _, group in groupby(asked, lambda one: one.kind):
        alike = list(group)
        end = done + sum(len(one.tree) for one in alike)
        pending.append(_launch_alike(alike, logits_RV[done:end]))
        done = end
    return lambda: [answers for wait in pending for answers in wait()]


@torch.inference_mode()
def _launch_alike(asked: list[Asked], logits_RV: Tensor) -> Callable[[], list[Answers]]:
    sampler, tree, tokens, num_candidates = asked[0]
    if len(asked) == 1:
        wait_for_one = sampler.launch(logits_RV, tree, tokens, num_candidates)
        return lambda: [wait_for_one()]
    greedy = Rows(logits_RV, np.zeros(len(logits_RV), np.int64), np.ones(len(logits_RV), bool))
    packed = sampler.packed(logits_RV, greedy, num_candidates, sampler.choosers(num_candidates))
    ends = np.cumsum([len(one.tree) for one in asked]).tolist()

    def wait() -> list[Answers]:
        answers = packed()
        return [Answers.unpack(answers[begin:end], num_candidates) for begin, end in pairwise([0, *ends])]

    return wait
