"""Measures how long choosing tokens from logits takes, beyond what the step-time curve already contains.

The curve is that of greedy steps that return candidates for each row. A sampled row adds noise to the scores of the
whole vocabulary, and a plain step returns no candidates. Knows no runner.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch

from lp.runner.step_times.measure import CANDIDATES, bushy_tree
from lp.sampling.sampler import Sampler
from lp.sampling.settings import Sampling
from lp.step_cost import Extras

# The larger number of rows that is measured; the smaller one is a single row.
ROWS = 16
# Each time is the median of this many, after one that does not count.
ROUNDS = 25

GREEDY = Sampling.greedy()
SAMPLED = replace(GREEDY, temperature=0.8)


def measure_answering(vocab_size: int, device: torch.device | str, num_rounds: int = ROUNDS) -> Extras:
    """The extras of plain and of sampled steps. Sampled tokens are drawn from the whole vocabulary."""
    logits_RV = torch.randn(ROWS, vocab_size, generator=torch.Generator().manual_seed(0)).to(device)

    def answering(sampling: Sampling, num_rows: int, num_candidates: int) -> Callable[[], object]:
        sampler = Sampler(sampling, 1, [], vocab_size, str(device))
        tree = bushy_tree(1, num_rows, vocab_size)
        return lambda: sampler.answers(logits_RV[:num_rows], tree, [1], num_candidates)

    kinds = [(CANDIDATES, GREEDY), (CANDIDATES, SAMPLED), (0, GREEDY), (0, SAMPLED)]
    works = [answering(sampling, rows, number) for number, sampling in kinds for rows in (1, ROWS)]
    medians = medians_s(works, num_rounds)
    greedy, sampled, greedy_plain, sampled_plain = (np.array(medians[at : at + 2]) for at in range(0, 8, 2))
    one, many = np.maximum(0.0, sampled - greedy).tolist()
    row_s = max(0.0, many - one) / (ROWS - 1)
    greedy_one, greedy_all = (greedy_plain - greedy).tolist()
    sampled_one, sampled_all = (sampled_plain - greedy).tolist()
    return Extras(
        sampled_step=max(0.0, one - row_s),
        sampled_row=row_s,
        greedy_plain=greedy_one,
        sampled_plain=sampled_one,
        greedy_plain_row=(greedy_all - greedy_one) / (ROWS - 1),
        sampled_plain_row=(sampled_all - sampled_one) / (ROWS - 1),
    )


def medians_s(works: Sequence[Callable[[], object]], num_rounds: int = ROUNDS) -> list[float]:
    """The median of the seconds that each of these takes.

    They take turns, so that a machine that is busy for a while slows all of them.
    """
    taken = [[_seconds(work) for work in works] for _ in range(1 + num_rounds)]
    return [statistics.median(of_one) for of_one in zip(*taken[1:], strict=True)]


def _seconds(work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin
