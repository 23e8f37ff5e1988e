"""Says how many rows a step may have, and plans the trees of its sequences: their drafts share one budget.

The drafts that are likeliest to be accepted come first, whatever sequence they belong to. Their number is the one with
the most expected tokens per second, by the step-time curve. No decision depends on a clock or on a rank.

    B sequences, D drafts that they offer, K drafts that are taken
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from lp.decoder import Offer, Waiting
from lp.drafting.history import UNKNOWN_ROWS
from lp.generation import RequestState
from lp.platform.library import address, library
from lp.step_cost import USUAL_ROWS, StepTimes
from lp.tree import TokenTree

# How many times as long as a usual one a step may take that feeds a prompt beside others.
LARGEST_SLOWDOWN = 1.6
# How many times as many rows it may have if more prompts wait than requests decode.
LARGEST_CROWDING = 2.0
# A curve is read up to this many times its largest number of rows.
FARTHEST = 8


@dataclass(frozen=True)
class StepRows:
    """How many rows a step may have.

    beside: with those of prompts, if a request decodes in it, so that it does not take much longer than others. most:
    in a step of one prompt. Both are for each of the replicas that the rows are dealt out to.
    per_thousand: by how much of its time a row takes longer for each thousand tokens before it. crowding: how many
    times `beside` a step may have if many prompts wait.
    """

    beside: int = 64
    most: int = 512
    num_replicas: int = 1
    per_thousand: float = 0.0
    crowding: float = 1.0

    def of_each(self, num_prompts: int, num_decoding: int) -> int:
        """Rows of each replica in a step in which so many decode and so many prompts wait.

        One prompt holds those who decode up as little as it can. The more prompts wait for each of them, the more is
        gained by feeding many rows at a time. If nobody decodes, a prompt by itself has all rows. Several have as many
        as beside one that decodes, if step times say how many pay: the first of them soon decodes beside the others.
        """
        if not num_decoding and (num_prompts < 2 or self.crowding == 1.0):
            return self.most
        factor = min(self.crowding, 1 + max(0, num_prompts - 1) / max(1, num_decoding))
        return min(int(self.beside * factor), self.most)


def step_rows(most: int | None, times: StepTimes | None, num_replicas: int) -> StepRows:
    """most: see SchedulerSettings. times: of the runner's steps; None if they are not known."""
    crowding, per_thousand = 1.0, times.row_per_thousand if times else 0.0
    if most is None:
        crowding = LARGEST_CROWDING if times else 1.0
        most = most_rows_within(times, LARGEST_SLOWDOWN) if times else StepRows.beside
    return StepRows(most, max(most, StepRows.most), num_replicas, per_thousand, crowding)


def most_rows_within(times: StepTimes, factor: float) -> int:
    """The largest number of rows of one rank whose step takes at most `factor` times as long as a usual step.

    It is at least `USUAL_ROWS`, and at most `FARTHEST` times the largest number that was measured.
    """
    curve = times.by_part()
    limit_s = factor * curve.at(USUAL_ROWS)
    numbers = range(USUAL_ROWS, max(USUAL_ROWS, FARTHEST * times.rows[-1]) + 1)
    return numbers[max(1, bisect_right(numbers, limit_s, key=curve.at)) - 1]


class Fed(NamedTuple):
    """Prompts that share a step. num_rows: theirs in it. num_left: prompts that will still have tokens to be fed."""

    num_rows: int = 0
    num_left: int = 0

    def seconds_of(self, step_s: float, without_s: float, num_rows: int, load: int) -> float:
        """The seconds of a step that its prompts pay for; the rest is the price of the tokens that it decodes.

        step_s: of the step without drafts, which has so many rows. without_s: without prompts either. load: sequences
        that decode.

        Where a prompt is fed soon, the others pay for all of a step without prompts, and drafts are worth as much
        as then. The more prompts wait, the more a draft takes the place of a row that would let another sequence
        decode: in the end all rows pay the same, so that only likely drafts are worth theirs.
        """
        longer_s = step_s - without_s
        waiting = min(1.0, max(0, self.num_left - 1) / load)
        return longer_s + waiting * max(0.0, step_s * self.num_rows / num_rows - longer_s)


class Drafts(NamedTuple):
    """odds: [D] float64 probabilities that drafts are accepted, in descending order. owners: [D] whose they are, by the
    number of the sequence.
    """

    odds: np.ndarray
    owners: np.ndarray


def plan_together(
    generations: Sequence[RequestState],
    rooms: Sequence[int],
    times: StepTimes | None,
    num_parts: int,
    fed: Fed,
) -> list[TokenTree]:
    """Plans the next trees of sequences that share a step.

    rooms: positions that the model has after each sequence's last token. times: None if they are not known; a step then
    has a moderate number of rows. num_parts: ranks that the step's rows are dealt out to. fed: of prompts.
    """
    if len(generations) == 1 and not fed.num_rows:
        return [generations[0].plan(rooms[0])]
    if not generations:
        return []
    load = len(generations)
    _prepare(generations, rooms)
    offers = [generation.offer(room, load) for generation, room in zip(generations, rooms, strict=True)]
    if not any(offer.odds for offer in offers):
        return [generation.take(0) for generation in generations]
    if times is None:
        number = max(0, UNKNOWN_ROWS - sum(offer.num_rows for offer in offers))
        counts = np.bincount(best_first(offers).owners[:number], minlength=load).tolist()
    else:
        counts = best_counts(offers, step_time(times.for_parts(num_parts), num_parts, fed, generations, offers))
    return [generation.take(count) for generation, count in zip(generations, counts, strict=True)]


def _prepare(generations: Sequence[RequestState], rooms: Sequence[int]) -> None:
    """Readies the next trees of sequences whose method does so for several of them together."""
    groups: dict[Callable[[Sequence[Waiting], int], None], list[Waiting]] = {}
    for state, room in zip(generations, rooms, strict=True):
        if (prepare := state.decoder.prepare) is not None:
            waiting = Waiting(state.decoder, state.sequence.tokens, room, state.stop.num_left)
            groups.setdefault(prepare, []).append(waiting)
    for prepare, group in groups.items():
        prepare(group, len(generations))


def best_first(offers: Sequence[Offer]) -> Drafts:
    """All offered drafts, the likeliest first.

    Of equally likely ones, those of the sequence that stands first come first, in the order of its offer.
    """
    odds = np.array([one for offer in offers for one in offer.odds], np.float64)
    owners = np.repeat(np.arange(len(offers)), [len(offer.odds) for offer in offers])
    order = np.argsort(-odds, kind="stable")  # which keeps the order of equal ones
    return Drafts(odds[order], owners[order])


def best_number(load: int, odds: Sequence[float] | np.ndarray, seconds: Sequence[float] | np.ndarray) -> int:
    """K, the number of drafts with the most expected tokens per second; of equally good ones, the largest.

    load: B. odds: [D] best first. seconds: [D + 1] of a step with none, one, ... and all of them. The speed may fall
    and rise again, as where graphs are captured for a few numbers of rows.
    """
    expected = np.cumsum(np.concatenate([[float(load)], odds]))
    speeds = expected / np.asarray(seconds)[: len(expected)]
    return len(odds) - int(np.argmax(speeds[::-1]))


class StepTime(NamedTuple):
    """Seconds of a step by the drafts that it takes.

    curve: [D + 1] by the number of rows alone. host_s: what is added to that without drafts. row_s: [B] what is added
    for each draft of a sequence.
    """

    curve: np.ndarray
    host_s: float
    row_s: list[float]


def step_time(
    times: StepTimes, num_parts: int, fed: Fed, generations: Sequence[RequestState], offers: Sequence[Offer]
) -> StepTime:
    """The seconds of a step with some of the offered drafts. Rows count as dealt out to ranks evenly."""
    extras, load = times.extras, len(offers)
    trees = -(-load // num_parts)  # of a rank
    num_rows, num_drafts, num_cached, host_s, row_s = fed.num_rows, 0, 0, 0.0, list[float]()
    for generation, offer in zip(generations, offers, strict=True):
        sequence = generation.sequence
        is_sampled = sequence.sampling.temperature != 0
        # Seconds of the step and of each of its rows that the curve does not contain.
        row_s.append(extras.host_row + is_sampled * extras.sampled_row / num_parts)
        host_s += extras.host_step + is_sampled * extras.sampled_step / load + offer.num_rows * row_s[-1]
        num_rows += offer.num_rows
        num_drafts += len(offer.odds)
        num_cached += len(sequence.tokens)
    host_s += times.of_sequences(trees, num_cached // num_parts)
    most_rows = num_rows + num_drafts
    curve = _by_rows(times, num_parts, 1 << most_rows.bit_length())
    fed_s = fed.seconds_of(curve[num_rows], curve[num_rows - fed.num_rows], num_rows, load)
    return StepTime(curve[num_rows : most_rows + 1] - fed_s, host_s, row_s)


def best_counts(offers: Sequence[Offer], time: StepTime) -> list[int]:
    """[B] how many drafts of each sequence are taken, so that tokens per second are the most."""
    load = len(offers)
    if (native := library()) is None:
        drafts = best_first(offers)
        seconds = time.curve + np.cumsum(np.append(time.host_s, np.array(time.row_s)[drafts.owners]))
        number = best_number(load, drafts.odds, seconds)
        return np.bincount(drafts.owners[:number], minlength=load).tolist()
    odds, sizes, row_s, counts = array("d"), array("q"), array("d", time.row_s), array("q", bytes(8 * load))
    for offer in offers:
        odds.extend(offer.odds)
        sizes.append(len(offer.odds))
    native.budget_share_out(
        odds.buffer_info()[0], sizes.buffer_info()[0], load, row_s.buffer_info()[0], address(time.curve), time.host_s,
        counts.buffer_info()[0],
    )  # fmt: skip
    return counts.tolist()


@lru_cache(maxsize=32)
def _by_rows(times: StepTimes, num_parts: int, most_rows: int) -> np.ndarray:
    """[M + 1] seconds of a step of 0, 1, ... `most_rows` rows."""
    curve = times.by_part()
    return np.array([curve.at(-(-num_rows // num_parts)) for num_rows in range(most_rows + 1)])
