"""Decides which requests take part in the next step: those that decode, and those whose prompts are fed.

All that have room (lp/scheduling/room.py) decode in every step, as long as a step can hold their rows. If they cannot,
turns are taken by stride scheduling (Waldspurger and Weihl, 1995): a request of twice the priority gets twice as many,
and none starves. Prompts are fed in chunks, which share steps with decoding, so that a long prompt holds no stream up.
Which prompt comes first is decided by weighted fair queueing (Demers et al., 1989).

The same requests in the same order give the same schedule on every rank, as no decision depends on a clock.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from lp.calibration.watch import StepWatch
from lp.generation import RequestState
from lp.model.kv_cache import pages_of
from lp.runner import Runner, SharedBy, SharesSteps
from lp.scheduling.budget import StepRows
from lp.scheduling.room import KVBudget
from lp.step_cost import StepTimes
from lp.trace.recorder import BatchFigures
from lp.tree import Answers

# The share of a step's rows that prompts have while there are any, however many requests decode.
FEEDING_SHARE = 0.25


class Turn(NamedTuple):
    """What a generation does in a step. num_fed: how many of its first tokens have been computed after it. decodes:
    whether it has a tree; if not, it is only fed.
    """

    generation: RequestState
    num_fed: int
    decodes: bool


@dataclass
class Batch:
    """Generations whose steps were started together.

    answers: one for each of them; None until the runner has finished the batch. watched: if its time is compared with
    the measured one, its rows and whether all parts share them. started_at: in seconds of time.perf_counter().
    num_fed: rows of prompts in it.
    """

    turns: list[Turn]
    answers: list[Answers] | None = None
    watched: tuple[int, bool] | None = None
    started_at: float = 0.0
    num_fed: int = 0

    def __contains__(self, generation: RequestState) -> bool:
        return any(turn.generation is generation for turn in self.turns)

    def remove(self, generation: RequestState) -> None:
        """Removes a generation and its answers, which must be there already."""
        assert self.answers is not None
        at = next(at for at, turn in enumerate(self.turns) if turn.generation is generation)
        del self.turns[at], self.answers[at]


class StepClock:
    """Times batches from their start, or from the end of the one before, to their end.

    watch: compares the times with measured ones; None if there are none.
    """

    def __init__(self, step_times: StepTimes | None, runner: Runner):
        self.watch = step_times and StepWatch(step_times, runner.num_replicas)
        self._shares = runner if isinstance(runner, SharesSteps) else None
        self._finished_at = 0.0
        # The batch that ended last, its seconds, and what traces say of it if that was asked for.
        self._batch, self._seconds = Batch([]), 0.0
        self._figures: BatchFigures | None = None

    def end(self, batch: Batch, finished_at: float) -> None:
        """Notes that a batch has ended."""
        began_at, self._finished_at = max(batch.started_at, self._finished_at), finished_at
        self._batch, self._seconds, self._figures = batch, finished_at - began_at, None
        if self.watch is not None and batch.watched is not None:
            num_rows, is_shared = batch.watched
            self.watch.note(num_rows, len(batch.turns), _num_cached(batch), self._seconds, is_shared)

    def record(self, generation: RequestState) -> None:
        """Tells a generation that is traced what the batch was that ended last. Nothing of it may be settled."""
        recorder, shared = generation.recorder, self._shares and self._shares.shared_by
        assert recorder
        if self._figures is None:
            self._figures = self._described(shared)
        recorder.figures = self._figures
        if shared:
            recorder.ranks = shared.ranks.get(generation.sequence.id)

    def _described(self, shared: SharedBy | None) -> BatchFigures:
        batch, expected_s = self._batch, None
        num_sequences, num_rows = len(batch.turns), batch.num_fed
        for turn in batch.turns:
            num_rows += len(turn.generation.tree)
        if self.watch is not None:
            is_shared = batch.turns[0].generation.decoder.is_shared
            expected_s = self.watch.expected_s(num_rows, num_sequences, _num_cached(batch), is_shared)
        return BatchFigures(shared.most_rows if shared else num_rows, num_sequences, self._seconds, expected_s)


def _num_cached(batch: Batch) -> int:
    """Tokens in the caches of a batch's sequences."""
    return sum(len(turn.generation.sequence.tokens) for turn in batch.turns)


@dataclass
class _Place:
    """A generation's place in the order of turns.

    decoding: its next turn's time, which grows by 1 / priority with each turn. feeding: the time at which its prompt
    would be done if all were fed at once, each at the rate of its priority.
    """

    decoding: float
    feeding: float


class Scheduler:
    """The generations that have not ended, and which of them wait for their next step.

    room: for the keys and values of all of them. rows: how many a step may have. owner_of: the replica that holds most
    of a sequence, by its id (see HasReplicas). homes: where those have room that had it last time `fitting` was called.
    """

    def __init__(self, room: KVBudget | None = None, rows: StepRows | None = None):
        """room: None is without a bound."""
        self.room = room or KVBudget()
        self.rows = rows or StepRows()
        self.owner_of: Callable[[str], int | None] = lambda _: None
        self.homes: dict[RequestState, int] = {}
        # All that have not ended, in the order of their arrival.
        self._running: dict[RequestState, _Place] = {}
        self._under_way: set[RequestState] = set()
        # The least time of those who decoded last, and the largest of those who were fed.
        self._decoding_time = self._feeding_time = 0.0

    def __iter__(self) -> Iterator[RequestState]:
        """Those that wait for their next step."""
        return (generation for generation in self._running if generation not in self._under_way)

    def __len__(self) -> int:
        return len(self._running) - len(self._under_way)

    def add(self, generation: RequestState) -> None:
        """Adds a new generation."""
        assert generation not in self._running
        feeding = self._feeding_time + generation.num_missing / generation.priority
        self._running[generation] = _Place(self._decoding_time, feeding)

    def alone(self) -> RequestState | None:
        """The only generation there is, if it is about to decode. It always has room, and a turn."""
        if len(self._running) != 1 or self._under_way or self.room.num_replicas > 1:
            return None
        (generation,) = self._running
        return None if generation.num_missing else generation

    def fitting(self) -> list[RequestState]:
        """Those that have room, in the order of their arrival."""
        if self.room.num_replicas == 1:
            self.homes = dict.fromkeys(found := self.room.first(self._running), 0)
            return found
        placed = self.room.placed(self._running, lambda generation: self.owner_of(generation.sequence.id))
        self.homes = dict(placed)
        return list(self.homes)

    def free_pages(self) -> list[int]:
        """The pages of each replica that are left beside those that have room."""
        free = [self.room.num_pages] * self.room.num_replicas
        for generation, replica in self.homes.items():
            free[replica] -= pages_of(generation.num_slots)
        return [max(0, left) for left in free]

    def preempted(self, fitting: Sequence[RequestState]) -> list[RequestState]:
        """Those that have lost their room to earlier ones: what they have computed must be dropped."""
        if len(fitting) == len(self._running):
            return []
        safe = set(fitting)
        return [generation for generation in self if generation not in safe and generation.num_fed]

    def next_batch(self, num_batches: int = 1, fitting: Sequence[RequestState] | None = None) -> list[Turn]:
        """The turns of the next step, in the order of arrival; none if nobody waits that has room.

        They count once `start` is called. num_batches: the number of batches that the runner wants under way at the
        same time, of other generations each. fitting: what `fitting` returns, if that is known.
        """
        fitting = self.fitting() if fitting is None else fitting
        waiting = [generation for generation in fitting if generation not in self._under_way]
        if not waiting:
            return []
        feeding = [one for one in waiting if one.num_missing]
        most = self.rows.most * self.rows.num_replicas
        share = math.ceil(len(self._running) / num_batches)
        if not feeding and len(waiting) <= share and len(turns := _decoding_turns(waiting, most)) == len(waiting):
            return turns  # where all have a turn, nothing needs to be in the order of turns
        feeding.sort(key=lambda one: self._running[one].feeding)
        decoding = sorted((one for one in waiting if not one.num_missing), key=self._decoding_time_of)
        turns = _decoding_turns(decoding[:share], most)
        left, most_each, per_thousand = most, self.rows.most, 0.0
        if turns or len(feeding) > 1:
            most_each, per_thousand = self.rows.of_each(len(feeding), len(turns)), self.rows.per_thousand
            beside = most_each * self.rows.num_replicas
            left = max(beside - _rows_beside(turns, len(feeding)), math.ceil(beside * FEEDING_SHARE))
        chosen = {
            turn.generation: turn
            for turn in (*turns, *_feeding_turns(feeding[: share - len(turns)], left, most_each, per_thousand))
        }
        return [chosen[one] for one in waiting if one in chosen]

    def _decoding_time_of(self, generation: RequestState) -> float:
        """The time of its next turn; the present one for those who had no room for a while, or have just come."""
        return max(self._running[generation].decoding, self._decoding_time)

    def start(self, turns: Sequence[Turn]) -> None:
        """Notes that these steps have been started."""
        times: list[float] = []
        for generation, _, decodes in turns:
            self._under_way.add(generation)
            place = self._running[generation]
            if decodes:
                times.append(max(place.decoding, self._decoding_time))
                place.decoding = times[-1] + 1 / generation.priority
            else:
                self._feeding_time = max(self._feeding_time, place.feeding)
        self._decoding_time = min(times, default=self._decoding_time)

    def finish(self, generation: RequestState) -> None:
        """Lets a generation wait for its next step, as the one under way is done."""
        self._under_way.remove(generation)

    def end(self, generation: RequestState) -> None:
        """Forgets a generation that has ended, and frees its room."""
        del self._running[generation]
        self._under_way.discard(generation)

    def clear(self) -> None:
        self._running.clear()
        self._under_way.clear()
        self.homes = {}


def _decoding_turns(decoding: Iterable[RequestState], most_rows: int) -> list[Turn]:
    """Turns of the first ones, as many as have at most so many rows together, and always of the first."""
    turns: list[Turn] = []
    for generation in decoding:
        most_rows -= generation.least_rows
        if turns and most_rows < 0:
            break
        turns.append(Turn(generation, len(generation.sequence.tokens) - 1, decodes=True))
    return turns


def _rows_beside(turns: Sequence[Turn], num_prompts: int) -> int:
    """The rows that turns which decode leave to nobody else, in a step beside so many prompts.

    Drafts count in full beside a single prompt, so that it holds nobody up for long. The more prompts wait, the less
    they count: then more is gained by letting more requests decode soon.
    """
    least = sum(turn.generation.least_rows for turn in turns)
    drafts = sum(turn.generation.likely_rows for turn in turns) - least
    return least + drafts // max(1, num_prompts)


def _feeding_turns(
    feeding: Iterable[RequestState], num_rows: float, most_each: int, per_thousand: float = 0.0
) -> list[Turn]:
    """Turns of the first ones until the rows are used up. The step that feeds the last of a prompt decodes as well,
    unless it scores the prompt.

    num_rows: of the usual length. most_each: of them for one turn, as one replica computes all of it. per_thousand: see
    StepRows; a row after many tokens counts for more than one.
    """
    turns: list[Turn] = []
    for generation in feeding:
        if num_rows <= 0:
            break
        missing = generation.num_missing
        price = 1 + per_thousand * generation.num_fed / 1000
        most = max(1, int(min(num_rows, most_each) / price))
        if scored := generation.most_scored:
            most = min(most, scored)
        decodes = not scored and missing + generation.least_rows <= most
        fed = missing if decodes else min(missing, most)
        turns.append(Turn(generation, generation.num_fed + fed, decodes))
        num_rows -= price * (fed + (generation.least_rows if decodes else 0))
    return turns
