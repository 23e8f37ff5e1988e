"""Plans the trees of all sequences of a step together: their drafts share one budget.

The drafts that are likeliest to be accepted come first, whatever sequence they belong to. Their number is the one with
the most expected tokens per second, by the step-time curve. No decision depends on a clock or on a rank.

    B sequences, D drafts that they offer, K drafts that are taken
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from lp.decoding.base import Offer
from lp.drafting.history import UNKNOWN_ROWS
from lp.generation import Generation
from lp.step_cost import StepTimes
from lp.tree import TokenTree


def plan_together(
    generations: Sequence[Generation],
    rooms: Sequence[int],
    times: StepTimes | None,
    num_parts: int,
    num_fed: int,
) -> list[TokenTree]:
    """Plans the next trees of sequences that share a step.

    rooms: positions that the model has after each sequence's last token. times: None if they are not known; a step then
    has a moderate number of rows. num_parts: ranks that the step's rows are dealt out to. num_fed: rows of prompts that
    share the step.
    """
    if len(generations) == 1 and not num_fed:
        return [generations[0].plan(rooms[0])]
    if not generations:
        return []
    load = len(generations)
    offers = [generation.offer(room, load) for generation, room in zip(generations, rooms, strict=True)]
    odds, owners = best_first(offers)
    if times is None:
        num_drafts = max(0, min(len(odds), UNKNOWN_ROWS - sum(offer.num_rows for offer in offers)))
    else:
        seconds = step_seconds(times.for_parts(num_parts), num_parts, num_fed, generations, offers, owners)
        num_drafts = best_number(load, odds, seconds)
    counts = np.bincount(owners[:num_drafts], minlength=load).tolist()
    return [generation.take(count) for generation, count in zip(generations, counts, strict=True)]


def best_first(offers: Sequence[Offer]) -> tuple[np.ndarray, np.ndarray]:
    """All offered drafts, the likeliest first: their odds [D] and the numbers of their sequences [D].

    Of equally likely ones, those of the sequence that stands first come first, in the order of its offer.
    """
    odds = np.array([draft for offer in offers for draft in offer.odds], np.float64)
    owners = np.repeat(np.arange(len(offers)), [len(offer.odds) for offer in offers])
    order = np.argsort(-odds, kind="stable")
    return odds[order], owners[order]


def best_number(load: int, odds: np.ndarray, seconds: np.ndarray) -> int:
    """K, the number of drafts with the most expected tokens per second; of equally good ones, the largest.

    load: B. odds: [D] of the drafts, best first. seconds: [D + 1] of a step with 0, 1, ... of them. The speed may fall
    and rise again, as where graphs are captured for a few numbers of rows.
    """
    expected = np.cumsum(np.concatenate([[float(load)], odds]))
    return len(odds) - int(np.argmax((expected / seconds)[::-1]))


def step_seconds(
    times: StepTimes,
    num_parts: int,
    num_fed: int,
    generations: Sequence[Generation],
    offers: Sequence[Offer],
    owners: np.ndarray,
) -> np.ndarray:
    """[D + 1] seconds of a step with none, one, ... and all of the drafts, whose sequences `owners` [D] tells.

    Rows count as if they were dealt out to the ranks evenly.
    """
    extras, load = times.extras, len(offers)
    is_sampled = np.array([generation.sequence.sampling.temperature != 0 for generation in generations], bool)
    # Seconds of a row of each sequence, beyond the curve.
    row_s = extras.host_row + is_sampled * (extras.sampled_row / num_parts)
    fixed = np.array([offer.num_rows for offer in offers], np.int64)
    num_rows = int(fixed.sum()) + num_fed
    num_cached = sum(len(generation.sequence.tokens) for generation in generations)
    step_s = load * extras.host_step + int(is_sampled.sum()) * extras.sampled_step + float((fixed * row_s).sum())
    step_s += times.of_sequences(max(1, -(-load // num_parts)), num_cached // num_parts)
    most = num_rows + len(owners)
    curve = _by_rows(times, num_parts, 1 << most.bit_length())[num_rows : most + 1]
    return curve + step_s + np.cumsum(np.concatenate([[0.0], row_s[owners]]))


@lru_cache(maxsize=32)
def _by_rows(times: StepTimes, num_parts: int, most_rows: int) -> np.ndarray:
    """[M + 1] seconds of a step of 0, 1, ... `most_rows` rows."""
    curve = times.by_part()
    return np.array([curve.at(-(-num_rows // num_parts)) for num_rows in range(most_rows + 1)])
