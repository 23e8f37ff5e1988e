"""Plans the steps of a batch: each request's tree, whose drafts share one budget of rows.

The drafts that are likeliest to be accepted come first, whatever sequence they belong to. Their number is the one with
the most expected tokens per second, by the step-time curve. No decision depends on a clock.

    B sequences, D drafts that they propose, K drafts that are chosen
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from lp.decoder import AheadOf, AheadYields, ProposedDrafts, StepYield, Waiting
from lp.drafting.history import UNKNOWN_ROWS
from lp.platform.library import address, library
from lp.runner.runner import Runner, StepInput
from lp.scheduling.batch import Batch, Turn
from lp.scheduling.request_state import RequestState
from lp.step_cost import StepTimes
from lp.tree import TokenTree

# Steps for which it stays decided who verifies, as parts that have drafted catch up before they verify.
STEPS_PER_DECISION = 16
# The share of the time that trials of the slower way may cost.
TRIAL_SHARE = 0.01


class Prefill(NamedTuple):
    """Prompts that share a step. num_rows: theirs in it. num_left: prompts that have tokens to prefill after it."""

    num_rows: int = 0
    num_left: int = 0

    def seconds_of(self, step_s: float, without_s: float, num_rows: int, load: int) -> float:
        """The seconds of a step that its prompts pay for; the rest is the price of the tokens that it decodes.

        step_s: of the step without drafts, which has `num_rows` rows. without_s: without prompts either. load:
        sequences that decode.

        Where a prompt is prefilled soon, the others pay for all of a step without prompts, and drafts are worth as much
        as then. The more prompts wait, the more a draft takes the place of a row that would let another sequence
        decode: in the end all rows pay the same, so only likely drafts are worth theirs.
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


class Expected(NamedTuple):
    """What is expected of a step: the tokens of all its requests, and its seconds."""

    tokens: float
    seconds: float

    @property
    def rate(self) -> float:
        """Tokens per second."""
        return self.tokens / self.seconds


class Roles:
    """Decides for each batch whether one part verifies it while the others draft ahead, or all parts verify.

    The way that is expected to yield most tokens per second is chosen, by step times and by what steps have yielded
    each way. As that changes with the text, the other way is tried now and then.
    """

    def __init__(self, num_parts: int):
        self._num_parts = num_parts
        self._is_ahead, self._num_left = False, 0
        # Seconds that trials may cost now.
        self._trials_s = 0.0

    def are_ahead(self, states: Sequence[RequestState], times: StepTimes | None) -> bool:
        """Whether one part verifies. states: the requests that decode. times: of steps; without them, one verifies
        wherever others can draft.
        """
        yields = [step.decoder.yields for step in steps_ahead_of(states)]
        if not yields or times is None:
            return bool(yields)
        if not self._num_left:
            self._is_ahead = self._choose(states, times, yields)
            self._num_left = STEPS_PER_DECISION
        self._num_left -= 1
        return self._is_ahead

    def _choose(self, states: Sequence[RequestState], times: StepTimes, yields: Sequence[AheadYields]) -> bool:
        """Whether one part verifies in the next steps. yields: of the requests that others can draft ahead for."""
        rest = [state for state in states if _ahead_of(state) is None]
        rest_tokens = sum(state.decoder.expected for state in rest)
        rest_rows = sum(state.likely_rows for state in rest)

        def total(found: Sequence[StepYield]) -> tuple[float, int]:
            """Tokens and rows of a step."""
            return rest_tokens + sum(one.tokens for one in found), rest_rows + round(sum(one.rows for one in found))

        tokens, num_rows = total([one.others for one in yields])
        shared = Expected(tokens, _seconds_of_all(states, times, num_rows, self._num_parts))
        tokens, num_rows = total([one.ahead for one in yields])
        longer_s = max(one.longer for one in yields) * times.at(1)
        ahead = Expected(tokens, longer_s + _seconds_while_others_draft(states, times, num_rows))
        best, other = (ahead, shared) if ahead.rate >= shared.rate else (shared, ahead)
        # A change costs about a step, as drafts are not there yet, or parts must catch up.
        loss_s = other.seconds * (1 + 1 / STEPS_PER_DECISION) - other.tokens / best.rate
        self._trials_s += TRIAL_SHARE * best.seconds
        if self._trials_s < loss_s:
            return best is ahead
        self._trials_s = 0.0
        return other is ahead


def _seconds_while_others_draft(states: Sequence[RequestState], times: StepTimes, num_rows: int) -> float:
    """About the seconds of a step of so many rows that one part computes while the others draft.

    They are at least those of a step in which each part has so many rows, as the parts may share a memory.
    """
    num_cached = sum(len(state.sequence.tokens) for state in states)
    alone_s = times.alone.at(num_rows) if times.alone else 0.0
    return max(alone_s, times.by_part().at(num_rows)) + times.of_sequences(len(states), num_cached)


def _seconds_of_all(states: Sequence[RequestState], times: StepTimes, num_rows: int, num_parts: int) -> float:
    """About the seconds of a step of so many rows that the parts share; one computes all of it if that is faster."""
    num_cached = sum(len(state.sequence.tokens) for state in states)
    own_rows, own_states = -(-num_rows // num_parts), -(-len(states) // num_parts)
    shared_s = times.by_part().at(own_rows) + times.of_sequences(own_states, num_cached // num_parts)
    if len(states) > 1 or times.alone is None:
        return shared_s
    return min(shared_s, times.alone.at(num_rows) + times.of_sequences(1, num_cached))


def _ahead_of(state: RequestState) -> AheadOf | None:
    return state.decoder.ahead_of(state.sequence.tokens)


def steps_ahead_of(states: Sequence[RequestState]) -> list[AheadOf]:
    """The steps of these requests that others may draft ahead of."""
    return [step for step in map(_ahead_of, states) if step is not None]


class Planner:
    """Turns batches into the steps of a runner."""

    def __init__(self, step_times: StepTimes | None, num_parts: int, max_length: int, has_fingerprints: bool = False):
        """step_times: of the runner; without them, a step has a moderate number of rows. num_parts: parts that share
        the rows of a step. max_length: most tokens of a sequence. has_fingerprints: whether steps carry a checksum of
        their request's state.
        """
        self.step_times, self.num_parts = step_times, num_parts
        self._roles = Roles(num_parts)
        self._max_length, self._has_fingerprints = max_length, has_fingerprints

    def plan(self, batch: Batch) -> list[StepInput]:
        """Plans the steps of a batch: the trees of all requests together, as they share its time."""
        states = batch.decoding
        rooms = [self._max_length - len(state.sequence.tokens) for state in states]
        prefill = Prefill(batch.num_prefill, batch.num_waiting)
        is_ahead = self.num_parts > 1 and self._roles.are_ahead(states, self.step_times)
        trees = iter(plan_trees(states, rooms, self.step_times, 1 if is_ahead else self.num_parts, prefill))
        for turn in batch.turns:
            if turn.decodes:
                batch.steps.append(self._decode_step(turn, next(trees), is_ahead))
                batch.expected += turn.state.decoder.expected
            else:
                batch.steps.append(_prefill_step(turn))
        return batch.steps

    def draft_ahead(self, batch: Batch, runner: Runner) -> None:
        """Drafts from the likely ends of a batch that others compute, if this part has nothing of it to compute."""
        steps = steps_ahead_of(batch.decoding) if runner.num_ahead else []
        if not steps:
            return
        found = [np.zeros(decoder.num_ahead, np.int32) for decoder, _ in steps]
        if runner.ahead_place is not None:
            found = steps[0].decoder.draft_ahead(steps, runner.ahead_place, runner.num_ahead)
        runner.send_ahead(np.concatenate(found))

    def take_ahead(self, batch: Batch, runner: Runner) -> None:
        """Gives decoders what was drafted ahead of a batch whose answers are there."""
        if (found := runner.take_ahead()) is None:
            return
        begin = 0
        for decoder, _ in steps_ahead_of(batch.decoding):
            end = begin + decoder.num_ahead
            decoder.take_ahead(found[:, begin:end])
            begin = end

    def _decode_step(self, turn: Turn, tree: TokenTree, is_ahead: bool) -> StepInput:
        state, decoder = turn.state, turn.state.decoder
        fingerprint = state.fingerprint() if self._has_fingerprints else 0
        return StepInput(state.sequence, tree, turn.num_computed, decoder.num_candidates, fingerprint, is_ahead)


def _prefill_step(turn: Turn) -> StepInput:
    state = turn.state
    tree = state.prefill(turn.num_computed)
    return StepInput(state.sequence, tree, state.num_computed)


def plan_trees(
    states: Sequence[RequestState], rooms: Sequence[int], times: StepTimes | None, num_parts: int, prefill: Prefill
) -> list[TokenTree]:
    """The next trees of requests that share a step. rooms: positions that the model has after each one's last token."""
    if len(states) == 1 and not prefill.num_rows:
        return [states[0].plan(rooms[0])]
    if not states:
        return []
    _prepare(states, rooms)
    proposals = [state.propose(room, len(states)) for state, room in zip(states, rooms, strict=True)]
    counts = share_drafts(states, proposals, times, num_parts, prefill)
    return [state.build_tree(count) for state, count in zip(states, counts, strict=True)]


def _prepare(states: Sequence[RequestState], rooms: Sequence[int]) -> None:
    """Prepares the next trees of requests whose method does so for several of them together (draft models run here)."""
    groups: dict[Callable[[Sequence[Waiting], int], None], list[Waiting]] = {}
    for state, room in zip(states, rooms, strict=True):
        if (prepare := state.decoder.prepare) is not None:
            waiting = Waiting(state.decoder, state.sequence.tokens, room, state.stop.num_left)
            groups.setdefault(prepare, []).append(waiting)
    for prepare, group in groups.items():
        prepare(group, len(states))


def share_drafts(
    states: Sequence[RequestState],
    proposals: Sequence[ProposedDrafts],
    times: StepTimes | None,
    num_parts: int,
    prefill: Prefill,
) -> list[int]:
    """[B] how many of its proposed drafts each request verifies."""
    if not any(proposal.odds for proposal in proposals):
        return [0] * len(proposals)
    if times is None:
        number = max(0, UNKNOWN_ROWS - sum(proposal.num_rows for proposal in proposals))
        return np.bincount(best_first(proposals).owners[:number], minlength=len(proposals)).tolist()
    return best_counts(proposals, step_time(times.for_parts(num_parts), num_parts, prefill, states, proposals))


def best_first(proposals: Sequence[ProposedDrafts]) -> Drafts:
    """All proposed drafts, the likeliest first.

    Of equally likely ones, those of the sequence that stands first come first, in the order of its proposal.
    """
    odds = np.array([one for proposal in proposals for one in proposal.odds], np.float64)
    owners = np.repeat(np.arange(len(proposals)), [len(proposal.odds) for proposal in proposals])
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
    times: StepTimes,
    num_parts: int,
    prefill: Prefill,
    states: Sequence[RequestState],
    proposals: Sequence[ProposedDrafts],
) -> StepTime:
    """The seconds of a step with some of the proposed drafts. Rows count as shared evenly by the parts."""
    extras, load = times.extras, len(proposals)
    trees = -(-load // num_parts)  # of a part
    num_rows, num_drafts, num_cached, host_s, row_s = prefill.num_rows, 0, 0, 0.0, list[float]()
    for state, proposal in zip(states, proposals, strict=True):
        sequence = state.sequence
        is_sampled = sequence.sampling.temperature != 0
        # Seconds of the step and of each of its rows that the curve does not contain.
        row_s.append(extras.host_row + is_sampled * extras.sampled_row / num_parts)
        host_s += extras.host_step + is_sampled * extras.sampled_step / load + proposal.num_rows * row_s[-1]
        num_rows += proposal.num_rows
        num_drafts += len(proposal.odds)
        num_cached += len(sequence.tokens)
    host_s += times.of_sequences(trees, num_cached // num_parts)
    most_rows = num_rows + num_drafts
    curve = _by_rows(times, num_parts, 1 << most_rows.bit_length())
    prefill_s = prefill.seconds_of(curve[num_rows], curve[num_rows - prefill.num_rows], num_rows, load)
    return StepTime(curve[num_rows : most_rows + 1] - prefill_s, host_s, row_s)


def best_counts(proposals: Sequence[ProposedDrafts], time: StepTime) -> list[int]:
    """[B] how many drafts of each sequence are taken, so that tokens per second are the most."""
    load = len(proposals)
    if (native := library()) is None:
        drafts = best_first(proposals)
        seconds = time.curve + np.cumsum(np.append(time.host_s, np.array(time.row_s)[drafts.owners]))
        number = best_number(load, drafts.odds, seconds)
        return np.bincount(drafts.owners[:number], minlength=load).tolist()
    odds, sizes, row_s, counts = array("d"), array("q"), array("d", time.row_s), array("q", bytes(8 * load))
    for proposal in proposals:
        odds.extend(proposal.odds)
        sizes.append(len(proposal.odds))
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
