"""One process plays ranks that verify and those that draft ahead of their steps, each with what it holds of a text.

All ranks of lookahead parallelism make the same plans, so one engine plans for all of them. What they draft differs:
each has its own keys and values of the copy. What they have found is merged as real ranks merge it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from benchmarks.projections.clocked_steps import StepClock
from benchmarks.projections.virtual_ranks import PlayedStep, VirtualRanks
from lp.decoder import Decoder
from lp.kv_cache.cache import KVCache
from lp.methods.auto.decoder import AutoDecoder
from lp.methods.auto.method import Auto
from lp.methods.auto.with_draft_model import MixedDecoder
from lp.methods.draft_model.asking import Experience
from lp.methods.draft_model.growth import Growth
from lp.methods.draft_model.interface import Wish
from lp.methods.draft_model.rounds import DraftedText
from lp.methods.draft_model.text import Round
from lp.model.causal import CausalModel
from lp.model.fast_forward import SequenceRows
from lp.model.second_model import DRAFT
from lp.request import DecodingContext, Request
from lp.request import Sequence as TokenSequence
from lp.runner.runner import Runner, StepInput
from lp.runner.single_device import Pending, SingleDevice
from lp.scheduling.batch import Batch
from lp.scheduling.planner import Planner
from lp.step_cost import StepCost

# The model's keys and values of prompts but for their last tokens, by the prompts.
KnownPrompts = Mapping[tuple[int, ...], KVCache]


class PreparedRank(SingleDevice):
    """A rank that has the keys and values of known prompts, whose steps are not counted."""

    def __init__(self, model: CausalModel, prompts: KnownPrompts):
        super().__init__(model)
        self._prompts = prompts

    def open(self, sequence: TokenSequence) -> None:
        super().open(sequence)
        if known := self._prompts.get(tuple(sequence.tokens)):
            state = self.states[sequence.id]
            state.cache.release()
            state.cache = known.fork()


class FoundAhead:
    """What ranks that draft ahead have found. num_drafting: their number."""

    def __init__(self, num_drafting: int):
        self.num_drafting = num_drafting
        self._found: list[np.ndarray] = []

    def num_of(self, step: StepInput) -> int:
        """How many ranks draft ahead of a step: all ranks compute the prompt."""
        return 0 if len(step.sequence.tokens) == step.sequence.prompt_length else self.num_drafting

    def add(self, drafts: np.ndarray) -> None:
        self._found.append(drafts)

    def take(self) -> np.ndarray | None:
        found, self._found = self._found, []
        return np.stack(found) if found else None


class VerifyingRank(PreparedRank):
    """The rank that computes all steps, and the exchange with those that draft ahead."""

    def __init__(self, model: CausalModel, prompts: KnownPrompts, clock: StepClock, cost: StepCost, num_ahead: int):
        """cost: of the steps. num_ahead: ranks that draft ahead."""
        super().__init__(model, prompts)
        self._clock, self._cost, self._ahead = clock, cost, FoundAhead(num_ahead)
        self.drafts_ahead = num_ahead > 0

    def launch(self, steps: list[StepInput]) -> Pending:
        (step,) = steps
        self.num_ahead = self._ahead.num_of(step)
        self._clock.add_step(step, step_seconds(self._cost, step, len(step.tree)))
        return super().launch(steps)

    def send_ahead(self, drafts: np.ndarray) -> None:
        self._ahead.add(drafts)

    def take_ahead(self) -> np.ndarray | None:
        return self._ahead.take()


class VerifyingRanks(VirtualRanks):
    """Ranks that share all trees, and the exchange with those that draft ahead."""

    def __init__(
        self, model: CausalModel, num_ranks: int, prompts: KnownPrompts, clock: StepClock, cost: StepCost,
        num_ahead: int,
    ):  # fmt: skip
        """num_ranks: that share trees. The others: see VerifyingRank."""

        def note(step: PlayedStep) -> None:
            clock.add_step(step.inputs[0], step_seconds(cost, step.inputs[0], step.rows))

        super().__init__(model, num_ranks, note, make_device=partial(PreparedRank, prompts=prompts))
        self._ahead, self.drafts_ahead = FoundAhead(num_ahead), num_ahead > 0

    def launch(self, steps: list[StepInput]) -> Pending:
        self.num_ahead = self._ahead.num_of(steps[0])
        return super().launch([replace(step, is_ahead=False) for step in steps])  # these ranks all verify

    def send_ahead(self, drafts: np.ndarray) -> None:
        self._ahead.add(drafts)

    def take_ahead(self) -> np.ndarray | None:
        return self._ahead.take()


def step_seconds(cost: StepCost, step: StepInput, num_rows: int) -> float:
    """Seconds of a step. num_rows: of the rank with the most."""
    is_plain = len(step.tree) == 1 and not step.num_candidates
    return cost.plain_s if is_plain else cost.step_s(num_rows, 0)


class AllPlaces(Planner):
    """Plans for all ranks, and has those that draft ahead do so one after the other."""

    def __init__(self, planner: Planner, max_length: int, clock: StepClock):
        super().__init__(planner.step_times, planner.num_parts, max_length)
        self._clock = clock

    def draft_ahead(self, batch: Batch, runner: Runner) -> None:
        for place in range(runner.num_ahead):
            self._clock.play(place)
            runner.ahead_place = place
            super().draft_ahead(batch, runner)
        self._clock.end_play()


class ClockedText(DraftedText):
    """What one rank's copy holds of a text. Its forwards are counted."""

    clock: StepClock

    def prefill(self, tokens: Sequence[int], most_rows: int) -> Iterator[SequenceRows]:
        for rows in super().prefill(tokens, most_rows):
            self.clock.add_forward(len(rows.tree))
            yield rows

    def round(self, tokens: Sequence[int], growth: Growth, nodes: list[int]) -> Round:
        found = super().round(tokens, growth, nodes)
        self.clock.add_forward(len(found.rows.tree))
        return found

    def begin_with(self, cache: KVCache, text: list[int]) -> None:
        """Begins with the model's own keys and values of a text."""
        self._take_from(cache, text)
        self.reads_text = False


class AheadTexts(ClockedText):
    """What the copies of all ranks that draft ahead hold of a text. They begin with the model's own keys and values of
    the prompt, as all ranks compute it.
    """

    ranks: Sequence[ClockedText]

    def draft_ahead(self, wishes: Sequence[Wish], time: float) -> None:
        (wish,) = wishes
        assert self.clock.place is not None
        rank = self.ranks[self.clock.place]
        rank.draft_ahead([wish._replace(text=rank)], time)


class PlayedAuto(Auto):
    """decode=auto with a copy of the model, whose forwards are counted."""

    clock: StepClock
    prompts: KnownPrompts
    num_ahead: int
    shares_trees: bool

    @staticmethod
    def on(clock: StepClock, prompts: KnownPrompts, num_ahead: int, shares_trees: bool, max_rows: int) -> PlayedAuto:
        """num_ahead: ranks that draft ahead; 0 has drafts made before each step. shares_trees: whether several ranks
        verify, none of which holds all keys and values of a text.
        """
        made = PlayedAuto(max_rows=max_rows)
        made.clock, made.prompts, made.num_ahead, made.shares_trees = clock, prompts, num_ahead, shares_trees
        return made

    def make_decoder(self, request: Request, context: DecodingContext) -> Decoder:
        sampling, history, second = request.sampling, context.history, context.extensions[DRAFT]
        assert sampling.seed is not None and sampling.temperature is not None
        assert second.model is not None and second.find_cache is not None
        prompt = tuple(request.prompt)
        given = (
            second.model, sampling, len(prompt), context.vocab_size,
            second.relative_costs, False,
        )  # fmt: skip
        if self.num_ahead:
            text = AheadTexts(*given, None, True)
            text.ranks = [ClockedText(*given, lambda _: self.prompts[prompt], True) for _ in range(self.num_ahead)]
        elif self.shares_trees:
            text = ClockedText(*given)
            text.begin_with(self.prompts[prompt], [*prompt])
        else:
            text = ClockedText(*given, partial(second.find_cache, request.id), False)
        for one in (text, *(text.ranks if isinstance(text, AheadTexts) else ())):
            one.clock = self.clock
        own = AutoDecoder(self, [*prompt], sampling.seed, sampling.temperature, history, request.owner)
        experience = history.of_all(self.method, sampling.temperature, Experience)
        return MixedDecoder(own, text, experience, False)
