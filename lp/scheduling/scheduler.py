"""Decides which requests take part in the next step: those that decode, and those whose prompts are prefilled.

All requests that fit the memory for keys and values (kv_budget.py) decode in every step, as long as a step can hold
their rows. If it cannot, turns are taken by stride scheduling (Waldspurger and Weihl, 1995): a request of twice the
priority gets twice as many, and none starves. Prompts are prefilled in chunks that share steps with decoding, so a long
prompt delays no stream. Which prompt comes first is decided by weighted fair queueing (Demers et al., 1989).

The same requests in the same order give the same schedule in every process: no decision depends on a clock.
"""

from __future__ import annotations

import math
import time
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from lp.kv_cache.cache import pages_of
from lp.model.fast_forward import PREFILL_CHUNK
from lp.request import Sequence as TokenSequence
from lp.runner.runner import Runner
from lp.runner.step_times.learn import StepTimesLearner
from lp.sampling.settings import Sampling
from lp.scheduling.batch import Batch, Turn
from lp.scheduling.kv_budget import KVBudget
from lp.scheduling.prefix_cache import FinishedSequence, PrefixCache, waiting_for_prefixes
from lp.scheduling.request_state import Committed, RequestState
from lp.scheduling.settings import SchedulerSettings
from lp.scheduling.step_clock import StepClock
from lp.statistics import EngineCounts
from lp.step_cost import USUAL_ROWS, StepTimes
from lp.tree import Answers

# The share of a step's rows that prompts get while there are any, however many requests decode.
PREFILL_SHARE = 0.25
# A step that prefills a prompt while others decode takes at most this many times as long as a usual step.
LARGEST_SLOWDOWN = 1.6
# It may have up to this many times as many rows if more prompts wait than requests decode.
LARGEST_CROWDING = 2.0
# The step-time curve is extrapolated up to this many times its largest number of rows.
FARTHEST = 8


@dataclass(frozen=True)
class StepRows:
    """How many rows a step may have.

    beside: together with those of prompts, if a request decodes in it, so that it does not take much longer than
    others. most: in a step of one prompt. Both are for each of the parts that share the rows. per_thousand: by how
    much of its time a row takes longer for each thousand tokens before it. crowding: how many times `beside` a step may
    have if many prompts wait.
    """

    beside: int = 64
    most: int = PREFILL_CHUNK
    num_parts: int = 1
    per_thousand: float = 0.0
    crowding: float = 1.0

    @staticmethod
    def of(
        max_step_rows: int | None, times: StepTimes | None, num_parts: int, prefill_chunk: int = PREFILL_CHUNK
    ) -> StepRows:
        """max_step_rows: see SchedulerSettings. times: of the runner's steps; None if they are unknown. prefill_chunk:
        of the runner.
        """
        crowding, per_thousand = 1.0, times.row_per_thousand if times else 0.0
        if max_step_rows is None:
            crowding = LARGEST_CROWDING if times else 1.0
            max_step_rows = most_rows_within(times, LARGEST_SLOWDOWN) if times else StepRows.beside
        most = max(max_step_rows, StepRows.most, prefill_chunk)
        return StepRows(max_step_rows, most, num_parts, per_thousand, crowding)

    def per_part(self, num_prompts: int, num_decoding: int) -> int:
        """Rows of each part in a step in which `num_decoding` requests decode and `num_prompts` prompts wait.

        One prompt delays the decoding requests as little as possible. The more prompts wait for each of them, the more
        is gained by larger chunks. If no request decodes, a single prompt gets all rows. Several prompts get as many as
        beside one decoding request if step times are known: the first of them soon decodes beside the others.
        """
        if not num_decoding and (num_prompts < 2 or self.crowding == 1.0):
            return self.most
        factor = min(self.crowding, 1 + max(0, num_prompts - 1) / max(1, num_decoding))
        return min(int(self.beside * factor), self.most)


def most_rows_within(times: StepTimes, factor: float) -> int:
    """The largest number of rows of one rank whose step takes at most `factor` times as long as a usual step.

    It is at least `USUAL_ROWS`, and at most `FARTHEST` times the largest number that was measured.
    """
    curve = times.by_part()
    limit_s = factor * curve.at(USUAL_ROWS)
    numbers = range(USUAL_ROWS, max(USUAL_ROWS, FARTHEST * times.rows[-1]) + 1)
    return numbers[max(1, bisect_right(numbers, limit_s, key=curve.at)) - 1]


@dataclass
class _Pass:
    """When a request's next turn is due.

    decode: its virtual time, which grows by 1 / priority with each turn. prefill: the time at which its prompt would be
    done if all prompts were prefilled at once, each at the rate of its priority.
    """

    decode: float
    prefill: float


class Scheduler:
    """All requests that have not ended: their order, their memory, and which of them have a step in flight.

    budget: the memory for keys and values of all requests. prefixes: finished sequences that requests may begin from.
    clock: times batches. counts: what has been done since `take_counts`.
    """

    def __init__(
        self,
        runner: Runner,
        settings: SchedulerSettings | None = None,
        budget: KVBudget | None = None,
        step_times: StepTimes | None = None,
        learner: StepTimesLearner | None = None,
    ):
        """budget: None is without a bound. step_times: of the runner; None if they are unknown. learner: of them."""
        settings = settings or SchedulerSettings()
        self.runner, self.budget = runner, budget or KVBudget()
        self.prefixes = PrefixCache(settings)
        self.clock = StepClock(learner, runner)
        self.counts = EngineCounts()
        self._max_step_rows = settings.max_step_rows
        self.set_step_times(step_times)
        # All requests that have not ended, in the order of their arrival.
        self._running: dict[RequestState, _Pass] = {}
        self._admitted: list[RequestState] = []
        self._in_flight: set[RequestState] = set()
        # Requests with no cached prefix. Rechecked when a request finishes.
        self._without_prefix: set[RequestState] = set()
        # Requests whose prompt begins like an earlier, running one: that one, and the number of tokens they share.
        self._shares_with: dict[RequestState, tuple[RequestState, int]] = {}
        # The virtual times: the least of the requests that decoded last, and the largest of those that were prefilled.
        self._decode_time = self._prefill_time = 0.0

    def __len__(self) -> int:
        return len(self._running)

    def __iter__(self) -> Iterator[RequestState]:
        """All requests that have not ended, in the order of their arrival, without aborted ones."""
        return (state for state in self._running if not state.is_aborted)

    def set_step_times(self, step_times: StepTimes | None) -> None:
        """Schedules by these step times from now on."""
        runner = self.runner
        self.rows = StepRows.of(self._max_step_rows, step_times, runner.num_parts, runner.prefill_chunk)

    def take_counts(self) -> EngineCounts:
        counts, self.counts = self.counts, EngineCounts()
        return counts

    # Requests

    def add(self, state: RequestState) -> None:
        """Adds a new request, whose sequence the runner does not know yet."""
        if same := self.prefixes.take(state.sequence.id):
            self.runner.close(same)
        running = ((one, one.prompt, one.owner) for one in self)
        if found := self.prefixes.find_running(state.sequence.tokens, state.owner, running, state.leader):
            self._shares_with[state] = found
        self.runner.open(state.sequence)
        self.add_open(state)

    def add_open(self, state: RequestState) -> None:
        """Adds a request whose sequence the runner has open."""
        assert state not in self._running
        prefill = self._prefill_time + state.num_uncomputed / state.priority
        self._running[state] = _Pass(self._decode_time, prefill)

    def abort(self, state: RequestState) -> None:
        """Ends a request at once, or, if a step of it is in flight, when the step is committed."""
        state.is_aborted = True
        if state not in self._in_flight:
            self._end(state)

    def _end(self, state: RequestState) -> None:
        """Forgets a request, and frees its memory or keeps it as a prefix of later requests."""
        del self._running[state]
        self._without_prefix.clear()
        self._shares_with.pop(state, None)
        if self.prefixes.keeps(state.sequence) and not state.num_uncomputed:
            self.prefixes.add(state.sequence, state.owner)
        else:
            self.runner.close(state.sequence)

    def clear(self) -> dict[str, TokenSequence]:
        """Forgets all requests and prefixes. Returns the sequences that the runner has open, by their ids."""
        sequences = *self.prefixes.take_all(), *(state.sequence for state in self._running)
        self._running.clear()
        self._in_flight.clear()
        return {sequence.id: sequence for sequence in sequences}

    def reset_prefixes(self) -> None:
        """Forgets the keys and values of finished requests. Those that a request has copied stay with it."""
        for sequence in self.prefixes.take_all():
            self.runner.close(sequence)

    def keep_finished(self, finished: Iterable[FinishedSequence], open_sequences: dict[str, TokenSequence]) -> None:
        """Keeps finished sequences, so that requests may begin from them.

        open_sequences: those that the runner has open, by their ids. The ones that are not kept are closed.
        """
        for name, tokens, prompt_length, owner in finished:
            if (sequence := open_sequences.pop(name, None)) is None:
                sequence = TokenSequence(name, tokens, prompt_length, Sampling(0.0, seed=0))
                self.runner.open(sequence)
            sequence.tokens = tokens  # another rank may have computed more of it
            self.prefixes.add(sequence, owner)
        for sequence in open_sequences.values():
            self.runner.close(sequence)

    # Schedule

    def schedule(self) -> Batch | None:
        """The next step: who decodes, and what is prefilled. None if no request is ready for a step."""
        turns = self.next_turns(self._admit())
        return self.start(turns) if turns else None

    def _admit(self) -> list[RequestState]:
        """Preempts requests that have lost their memory, and lets new ones begin from computed prefixes.

        Returns those that may have a turn, with or without a step in flight, in the order of their arrival.
        """
        admitted = self.admitted()
        if len(admitted) < len(self._running):
            for state in self.preempted(admitted):
                self.runner.drop(state.sequence)
                state.forget_computed()
                self.counts.preemptions += 1
        if not len(self.prefixes) and not self._shares_with:
            return admitted
        return self._reuse_prefixes(admitted)

    def admitted(self) -> list[RequestState]:
        """The requests whose keys and values fit into memory together, in the order of their arrival."""
        self._admitted = self.budget.first(self._running)
        return self._admitted

    def preempted(self, admitted: Sequence[RequestState]) -> list[RequestState]:
        """The requests that have lost their memory to earlier ones: what was computed of them must be dropped."""
        safe = set(admitted)
        return [one for one in self._running if one not in safe and one not in self._in_flight and one.num_computed]

    def free_pages(self) -> int:
        """The pages that are left beside those of admitted requests."""
        return max(0, self.budget.num_pages - sum(pages_of(state.num_slots) for state in self._admitted))

    def _reuse_prefixes(self, admitted: list[RequestState]) -> list[RequestState]:
        """Copies computed prefixes to new requests. Returns the admitted ones without those that wait for a prefix that
        a running request is computing.
        """
        new = [
            one
            for one in admitted
            if not one.num_computed
            and one.num_uncomputed
            and one not in self._without_prefix
            and one not in self._in_flight
        ]
        waiting = waiting_for_prefixes(self._shares_with, new, admitted)
        found = [(one, self.prefixes.find(one.sequence.tokens, one.owner)) for one in new if one not in waiting]
        self._without_prefix.update(one for one, prefix in found if prefix is None)
        for sequence in self.prefixes.take_surplus(self.free_pages()):
            self.runner.close(sequence)
        for state, prefix in found:
            if prefix and prefix.sequence in self.prefixes:
                self._copy_prefix(prefix.sequence, state, prefix.length)
        for state, (earlier, length) in waiting.items():
            if earlier.num_computed >= length and earlier not in self._in_flight:
                self._copy_prefix(earlier.sequence, state, length)
        return [one for one in admitted if one not in waiting or one.num_computed] if waiting else admitted

    def _copy_prefix(self, source: TokenSequence, state: RequestState, length: int) -> None:
        state.reuse_prefix(self.runner.copy(source, state.sequence, length))
        if not state.num_computed:
            self._without_prefix.add(state)
            self._shares_with.pop(state, None)

    def next_turns(self, ready: Sequence[RequestState]) -> list[Turn]:
        """The turns of the next step, in the order of arrival; none if nobody of `ready` waits for one."""
        waiting = [state for state in ready if state not in self._in_flight]
        if not waiting:
            return []
        prefilling = [one for one in waiting if one.num_uncomputed]
        most = self.rows.most * self.rows.num_parts * self.runner.depth  # every stage has some at the same time
        share = -(-len(self._running) // self.runner.depth)  # a runner of several stages gets several batches
        if not prefilling and len(waiting) <= share and len(turns := _decode_turns(waiting, most)) == len(waiting):
            return turns  # all have a turn, so their order does not matter
        prefilling.sort(key=lambda one: self._running[one].prefill)
        decoding = sorted((one for one in waiting if not one.num_uncomputed), key=self._decode_time_of)
        turns = _decode_turns(decoding[:share], most)
        left, most_each, per_thousand = most, self.rows.most * self.runner.depth, 0.0
        if turns or len(prefilling) > 1:
            most_each, per_thousand = self.rows.per_part(len(prefilling), len(turns)), self.rows.per_thousand
            in_step = most_each * self.rows.num_parts
            left = max(in_step - _rows_of(turns, len(prefilling)), math.ceil(in_step * PREFILL_SHARE))
        turns += _prefill_turns(prefilling[: share - len(turns)], left, most_each, per_thousand)
        by_state = {turn.state: turn for turn in turns}
        return [by_state[one] for one in waiting if one in by_state]

    def _decode_time_of(self, state: RequestState) -> float:
        """The virtual time of its next turn; the present one for requests that had no memory, or have just come."""
        return max(self._running[state].decode, self._decode_time)

    def start(self, turns: list[Turn]) -> Batch:
        """Notes that these turns are taken."""
        decode_time, num_prefill = math.inf, 0
        for state, num_computed, decodes in turns:
            self._in_flight.add(state)
            num_prefill += num_computed - state.num_computed
            entry = self._running[state]
            if decodes:
                entry.decode = max(entry.decode, self._decode_time)
                decode_time = min(decode_time, entry.decode)
                entry.decode += 1 / state.priority
            else:
                self._prefill_time = max(self._prefill_time, entry.prefill)
        if decode_time < math.inf:
            self._decode_time = decode_time
        return Batch(turns, num_prefill, self._num_waiting(turns) if num_prefill else 0)

    def _num_waiting(self, turns: list[Turn]) -> int:
        """How many prompts have tokens to prefill after these turns."""
        done = sum(turn.decodes and turn.state.num_uncomputed > 0 for turn in turns)
        return sum(state.num_uncomputed > 0 for state in self._admitted) - done

    def release(self, batch: Batch) -> None:
        """Lets the requests of a batch wait for their next step, as the batch is no longer in flight."""
        for turn in batch.turns:
            self._in_flight.discard(turn.state)

    # Commit

    def commit(self, batch: Batch, answers: Sequence[Answers]) -> list[Committed]:
        """Adds the tokens that a batch has yielded, and ends the requests that are over; `account` does the rest.

        Steps that only prefill yield nothing, and neither do those of aborted requests.
        """
        self.clock.end(batch, time.perf_counter())
        committed: list[Committed] = []
        for turn, of_turn in zip(batch.turns, answers, strict=True):
            state = turn.state
            if state.is_aborted:
                self._end(state)
                continue
            if turn.decodes and state.recorder:
                self.clock.record(state, batch)
            step = state.commit(of_turn) if turn.decodes else state.commit_prefill(of_turn)
            if step is None:
                continue
            if step.reason:
                self._end(state)
            committed.append(step)
        return committed

    def account(self, batch: Batch) -> None:
        """Counts a batch that was committed, and learns from its seconds."""
        self.counts.add(len(batch.turns), batch.num_rows, batch.expected)
        self.clock.learn(batch)


def _decode_turns(decoding: Iterable[RequestState], most_rows: int) -> list[Turn]:
    """Turns of the first requests, as many as have at most `most_rows` together, and always of the first."""
    turns: list[Turn] = []
    for state in decoding:
        most_rows -= state.least_rows
        if turns and most_rows < 0:
            break
        turns.append(Turn(state, len(state.sequence.tokens) - 1, decodes=True))
    return turns


def _rows_of(turns: Sequence[Turn], num_prompts: int) -> int:
    """The rows that decoding turns take from the prompts of their step.

    Drafts count in full beside a single prompt, so that it delays nobody for long. The more prompts wait, the less they
    count: then more is gained by letting more requests decode soon.
    """
    least = sum(turn.state.least_rows for turn in turns)
    drafts = sum(turn.state.likely_rows for turn in turns) - least
    return least + drafts // max(1, num_prompts)


def _prefill_turns(
    prefilling: Iterable[RequestState], num_rows: float, most_each: int, per_thousand: float
) -> list[Turn]:
    """Turns of the first prompts until the rows are used up. The step that prefills the last of a prompt decodes as
    well, unless it scores the prompt.

    num_rows: of the usual length; a row after many tokens counts for more than one (see StepRows). most_each: rows of
    one turn, as one replica computes all of it.
    """
    turns: list[Turn] = []
    for state in prefilling:
        if num_rows <= 0:
            break
        missing = state.num_uncomputed
        price = 1 + per_thousand * state.num_computed / 1000
        most = max(1, int(min(num_rows, most_each) / price))
        if scored := state.most_scored:
            most = min(most, scored)
        decodes = not scored and missing + state.least_rows <= most
        chunk = missing if decodes else min(missing, most)
        turns.append(Turn(state, state.num_computed + chunk, decodes))
        num_rows -= price * (chunk + (state.least_rows if decodes else 0))
    return turns
