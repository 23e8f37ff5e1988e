"""Measures how long choosing tokens from logits takes, beyond what the step-time curve already contains.

The curve is that of greedy steps that return candidates for each row. A sampled row adds noise to the scores of the
whole vocabulary, and a plain step returns no candidates. Knows no runner.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import replace

import torch

from lp.calibration.measure import CANDIDATES, bushy_tree
from lp.sampling.sampler import Sampler
from lp.sampling.settings import Sampling
from lp.step_cost import Extras

# The larger number of rows that is measured; the smaller one is a single row.
ROWS = 16
# Each time is the median of this many, after one that does not count.
ROUNDS = 7

GREEDY = Sampling.greedy()
SAMPLED = replace(GREEDY, temperature=0.8)


def measure_answering(vocab_size: int, device: torch.device | str) -> Extras:
    """The extras of plain and of sampled steps. Sampled tokens are drawn from the whole vocabulary."""
    logits_RV = torch.randn(ROWS, vocab_size, generator=torch.Generator().manual_seed(0)).to(device)

    def seconds(sampling: Sampling, num_rows: int, num_candidates: int) -> float:
        sampler = Sampler(sampling, 1, [], vocab_size, str(device))
        tree = bushy_tree(1, num_rows, vocab_size)
        return median_s(lambda: sampler.answers(logits_RV[:num_rows], tree, [1], num_candidates))

    greedy_one, greedy_many = (seconds(GREEDY, rows, CANDIDATES) for rows in (1, ROWS))
    sampled_one, sampled_many = (seconds(SAMPLED, rows, CANDIDATES) for rows in (1, ROWS))
    one, many = max(0.0, sampled_one - greedy_one), max(0.0, sampled_many - greedy_many)
    row_s = max(0.0, many - one) / (ROWS - 1)
    return Extras(
        sampled_step=max(0.0, one - row_s),
        sampled_row=row_s,
        greedy_plain=seconds(GREEDY, 1, 0) - greedy_one,
        sampled_plain=seconds(SAMPLED, 1, 0) - greedy_one,
    )


def median_s(work: Callable[[], object]) -> float:
    """The median of the seconds that `work` takes."""
    taken = []
    for _ in range(1 + ROUNDS):
        begin = time.perf_counter()
        work()
        taken.append(time.perf_counter() - begin)
    return statistics.median(taken[1:])
