"""The batches of steps that a runner has under way: what a batch consists of, and whose answers it brings.

Knows neither texts nor requests.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator

from lp.generation import Committed, RequestState
from lp.model.kv_cache import pages_of
from lp.request import Sequence
from lp.runner import HasReplicas, Home, Runner, StepInput
from lp.sampling.settings import Sampling
from lp.scheduling.budget import Fed, plan_together, step_rows
from lp.scheduling.prefixes import Finished, Prefixes, followers
from lp.scheduling.scheduler import Batch, Scheduler, StepClock, Turn
from lp.scheduling.settings import SchedulerSettings
from lp.statistics import EngineCounts
from lp.step_cost import StepTimes
from lp.tree import Answers, TokenTree


class Batches:
    """Starts batches of steps on a runner, and finishes them in the same order.

    settings: how steps are filled. fingerprints: whether every step carries a checksum of its generation's state.
    max_length: most tokens of a sequence. step_times: the runner's; None if they are not known. clock: times batches.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        settings: SchedulerSettings,
        runner: Runner,
        max_length: int,
        step_times: StepTimes | None,
        fingerprints: bool = False,
    ):
        self.scheduler = scheduler
        self.prefixes = Prefixes(settings)
        self.runner = runner
        self.fingerprints = fingerprints
        self._replicas: HasReplicas | None = None
        scheduler.owner_of = lambda _: None
        if scheduler.room.num_replicas > 1 and isinstance(runner, HasReplicas):
            self._replicas, scheduler.owner_of = runner, runner.owner_of
        self._max_length, self._most_rows = max_length, settings.max_step_rows
        self._step_times = step_times
        self._weigh()
        self.clock = StepClock(step_times, runner)
        self._under_way: deque[Batch] = deque()
        # Those that begin like nothing that is kept; what is kept grows when a generation ends.
        self._unlike: set[RequestState] = set()
        # Those that begin like one that came earlier and was running: that one, and the number of tokens they share.
        self._followed: dict[RequestState, tuple[RequestState, int]] = {}
        self._counts = EngineCounts()

    def take_times(self, step_times: StepTimes) -> None:
        """Plans by other step times from now on."""
        self._step_times = step_times
        self._weigh()
        assert self.clock.watch is not None
        self.clock.watch.take(step_times, self.runner.num_replicas)

    def _weigh(self) -> None:
        """Says how long steps take to those that choose by it."""
        self.scheduler.rows = step_rows(self._most_rows, self._step_times, self.runner.num_replicas)
        if self._step_times is not None and isinstance(self.runner, HasReplicas):
            self.runner.weigh(self._step_times)

    def take_counts(self) -> EngineCounts:
        """What has been done since this was last asked."""
        counts, self._counts = self._counts, EngineCounts()
        return counts

    def __len__(self) -> int:
        return len(self._under_way)

    def generations(self) -> Iterator[RequestState]:
        """Those with a step under way."""
        return (turn.generation for batch in self._under_way for turn in batch.turns)

    def open(self, generation: RequestState) -> None:
        """Takes in a new generation."""
        if same := self.prefixes.take(generation.sequence.id):
            self.runner.close(same)
        running = ((one, one.prompt, one.owner) for one in (*self.scheduler, *self.generations()))
        tokens, leader = generation.sequence.tokens, generation.leader
        if found := self.prefixes.find_running(tokens, generation.owner, running, leader):
            self._followed[generation] = found
        self.runner.open(generation.sequence)
        self.scheduler.add(generation)

    def end(self, generation: RequestState) -> None:
        """Forgets a generation that has ended and has no step under way, but may keep what was computed for it."""
        self.scheduler.end(generation)
        self._unlike.clear()
        self._followed.pop(generation, None)
        if self.prefixes.keeps(generation.sequence) and not generation.num_missing:
            self.prefixes.add(generation.sequence, generation.owner)
        else:
            self.runner.close(generation.sequence)

    def start(self) -> None:
        """Starts batches until the runner takes no more, or nobody waits."""
        depth = self.runner.depth
        if len(self._under_way) >= depth:
            return
        if (alone := self.scheduler.alone()) is not None and not len(self.prefixes):
            self._start_alone(alone)
            return
        fitting = self._make_room()
        while len(self._under_way) < depth and (turns := self.scheduler.next_batch(depth, fitting)):
            num_fed = sum(turn.num_fed - turn.generation.num_fed for turn in turns)
            steps = self._plan(turns, num_fed)
            self._arrange()
            self._start(turns, steps, num_fed)

    def _start_alone(self, generation: RequestState) -> None:
        """Starts the next step of the only generation there is."""
        tokens = generation.sequence.tokens
        turn = Turn(generation, len(tokens) - 1, decodes=True)
        tree = generation.plan(self._max_length - len(tokens))
        self._start([turn], [self._decoding(turn, tree)], 0)

    def _start(self, turns: list[Turn], steps: list[StepInput], num_fed: int) -> None:
        started_at = time.perf_counter()
        self.runner.start(steps)
        self.scheduler.start(turns)  # after the runner: if that fails, they can still be cancelled
        batch = Batch(turns, started_at=started_at, num_fed=num_fed)
        if self.clock.watch is not None and not num_fed:
            batch.watched = sum(len(step.tree) for step in steps), steps[0].is_shared
        self._under_way.append(batch)
        self._count(steps, num_fed, sum(turn.generation.decoder.expected for turn in turns if turn.decodes))

    def keep(self, finished: Iterable[Finished], held: dict[str, Sequence]) -> None:
        """Keeps finished sequences, so that requests may begin from them.

        held: sequences that the runner has open; those that are not kept are closed.
        """
        for name, tokens, owner in finished:
            if (sequence := held.pop(name, None)) is None:
                sequence = Sequence(name, tokens, len(tokens), Sampling(0.0, seed=0))
                self.runner.open(sequence)
            sequence.tokens = tokens  # another rank may have gone further with it
            self.prefixes.add(sequence, owner)
        for sequence in held.values():
            self.runner.close(sequence)

    def _make_room(self) -> list[RequestState]:
        """Drops what there is no room for; gives those that begin what was kept of the same beginning. Returns those
        that have room.
        """
        fitting = self.scheduler.fitting()
        for generation in self.scheduler.preempted(fitting):
            self.runner.drop(generation.sequence)
            generation.forget()
            self._counts.preemptions += 1
        if not len(self.prefixes) and not self._followed:
            return fitting
        beginning = [one for one in fitting if not one.num_fed and one.num_missing and one not in self._unlike]
        following = followers(self._followed, beginning, fitting)
        found = [(one, self.prefixes.find(one.sequence.tokens, one.owner)) for one in beginning if one not in following]
        self._unlike.update(one for one, prefix in found if prefix is None)
        for sequence in self.prefixes.take_surplus(self.scheduler.free_pages(), self.scheduler.owner_of):
            self.runner.close(sequence)
        for generation, prefix in found:
            if prefix and prefix.sequence in self.prefixes:
                self.runner.copy(prefix.sequence, generation.sequence, prefix.length)
                generation.reuse(prefix.length)
        for one, (earlier, length) in following.items():
            if earlier.num_fed >= length and earlier in self.scheduler:  # and not in a step under way
                self.runner.copy(earlier.sequence, one.sequence, length)
                one.reuse(length)
        return [one for one in fitting if one not in following or one.num_fed] if following else fitting

    def _arrange(self) -> None:
        """Tells a runner with replicas where the sequences have room, those without a turn included."""
        if self._replicas is not None:
            homes = self.scheduler.homes.items()
            self._replicas.arrange({one.sequence.id: Home(place, pages_of(one.num_slots)) for one, place in homes})

    def finish(self) -> list[tuple[RequestState, Committed]]:
        """Waits for the oldest batch and adds what it has yielded; steps that only feed or score a sequence yield
        nothing. Its generations wait for their next step then, but for those that are over.
        """
        batch = self._under_way.popleft()
        try:
            answers = batch.answers or self.runner.finish()
        finally:  # if that fails, no answers will come, but the generations may go on with other ranks
            for turn in batch.turns:
                self.scheduler.finish(turn.generation)
        self.clock.end(batch, time.perf_counter())
        settled = [self._settle(turn, of_turn) for turn, of_turn in zip(batch.turns, answers, strict=True)]
        return [one for one in settled if one is not None]

    def _settle(self, turn: Turn, answers: Answers) -> tuple[RequestState, Committed] | None:
        generation, _, decodes = turn
        if decodes:
            if generation.recorder:
                self.clock.record(generation)
            step = generation.settle(answers)
        elif not len(answers.targets) or (step := generation.score(answers)) is None:
            return None
        if step.reason:
            self.end(generation)
        return generation, step

    def withdraw(self, generation: RequestState) -> None:
        """Removes a generation with a step under way, after waiting for its batch and all earlier ones."""
        for batch in list(self._under_way):
            if batch.answers is None:
                batch.answers, batch.watched = self.runner.finish(), None
            if generation in batch:
                batch.remove(generation)
                if not batch.turns:
                    self._under_way.remove(batch)
                return

    def _plan(self, turns: list[Turn], num_fed: int) -> list[StepInput]:
        """Plans the steps of a batch: all trees together, as they share its time. num_fed: rows of prompts."""
        decoding = [turn.generation for turn in turns if turn.decodes]
        rooms = [self._max_length - len(generation.sequence.tokens) for generation in decoding]
        waiting = set(self.scheduler.homes).difference(decoding) if num_fed else ()
        fed = Fed(num_fed, sum(1 for one in waiting if one.num_missing))
        trees = iter(plan_together(decoding, rooms, self._step_times, self.runner.num_replicas, fed))
        return [self._decoding(turn, next(trees)) if turn.decodes else _feeding(turn) for turn in turns]

    def _decoding(self, turn: Turn, tree: TokenTree) -> StepInput:
        """The step of a turn that decodes."""
        generation, decoder = turn.generation, turn.generation.decoder
        fingerprint = generation.fingerprint() if self.fingerprints else 0
        return StepInput(
            generation.sequence, tree, turn.num_fed, decoder.num_candidates, fingerprint, decoder.is_shared
        )

    def _count(self, steps: list[StepInput], num_fed: int, expected: float) -> None:
        num_rows = num_fed + sum(len(step.tree) for step in steps if step.tree.scored is None)
        self._counts.add(len(steps), num_rows, expected)


def _feeding(turn: Turn) -> StepInput:
    """The step of a turn that only feeds."""
    generation = turn.generation
    tree = generation.feed(turn.num_fed)
    return StepInput(generation.sequence, tree, generation.num_fed, is_shared=not len(tree))
