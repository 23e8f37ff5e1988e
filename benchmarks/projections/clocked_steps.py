"""What steps would take on devices which each have a memory of their own, by tables of times instead of a clock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean

from lp.methods.draft_model.growth import cost_at
from lp.model.extensions import ROUND_ROWS
from lp.runner.runner import StepInput
from lp.step_cost import StepCost, StepTimes


@dataclass(frozen=True)
class DeviceTimes:
    """Times of steps, and of rounds of drafts, on one device, or on several that hold the model together.

    step: of the model, with the exchange of a step if there is one. copy_s: seconds of the copy's forwards of
    ROUND_ROWS. exchange_s: the part of a step that is the exchange.
    """

    step: StepTimes
    copy_s: tuple[float, ...]
    exchange_s: float = 0.0

    @property
    def plain_s(self) -> float:
        """Seconds of a plain step."""
        return StepCost(self.step, 1).plain_s

    @property
    def relative_costs(self) -> tuple[float, ...]:
        """See SecondText."""
        return tuple(seconds / self.plain_s for seconds in self.copy_s)

    def copy_forward_s(self, num_rows: int) -> float:
        """Seconds of a forward of the copy."""
        return cost_at(self.copy_s, num_rows, self.copy_s[ROUND_ROWS.index(1)])


@dataclass
class ClockedStep:
    """One step of a text. num_new: new tokens of the text before it. step_s: seconds of the model, and of the exchange.
    exchange_s: the latter alone. before_s: of drafts made before it. ahead_s: of drafts made while it is computed, of
    each rank that drafts.
    """

    num_new: int
    step_s: float
    exchange_s: float
    before_s: float = 0.0
    ahead_s: list[float] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        return self.before_s + max(self.step_s, self.exchange_s + max(self.ahead_s, default=0.0))


@dataclass(frozen=True)
class ClockedTotals:
    """Texts from their second step on; the first one computes the prompt.

    waiting: the share of the time in which a verifying rank waits for drafts. drafting: ranks that draft in a step.
    """

    tokens: int
    steps: int
    seconds: float
    waiting: float
    drafting: float

    @property
    def tokens_per_step(self) -> float:
        return self.tokens / self.steps

    @property
    def tokens_per_s(self) -> float:
        return self.tokens / self.seconds

    @staticmethod
    def of(texts: Sequence[tuple[int, Sequence[ClockedStep]]]) -> ClockedTotals:
        """texts: of each the number of its new tokens, and its steps."""
        tokens, steps = 0, list[ClockedStep]()
        for num_new, own in texts:
            counted = [step for step in own if step.num_new]
            if counted:
                tokens += num_new - counted[0].num_new
                steps += counted
        seconds = sum(step.seconds for step in steps)
        waited = sum(step.seconds - step.before_s - step.step_s for step in steps)
        drafting = fmean(sum(seconds > 0 for seconds in step.ahead_s) for step in steps)
        return ClockedTotals(tokens, len(steps), seconds, waited / seconds, drafting)


class StepClock:
    """The steps of a text, as ranks would take them side by side.

    place: of the rank that is played, among those that draft ahead; None while none of them does.
    """

    def __init__(self, times: DeviceTimes):
        self._times = times
        self.steps: list[ClockedStep] = []
        self.place: int | None = None
        self._before_s = 0.0

    def begin_text(self) -> None:
        self.steps, self._before_s = [], 0.0

    def add_step(self, step: StepInput, step_s: float) -> None:
        """Counts a step of the model, with its exchange."""
        num_new = len(step.sequence.tokens) - step.sequence.prompt_length
        self.steps.append(ClockedStep(num_new, step_s, self._times.exchange_s, self._before_s))
        self._before_s = 0.0

    def play(self, place: int) -> None:
        """Counts what is drafted from now on for a rank that drafts while the last step is computed."""
        self.place = place
        self.steps[-1].ahead_s.append(0.0)

    def end_play(self) -> None:
        self.place = None

    def add_forward(self, num_rows: int) -> None:
        """Counts a forward of the copy."""
        seconds = self._times.copy_forward_s(num_rows)
        if self.place is None:
            self._before_s += seconds
        else:
            self.steps[-1].ahead_s[self.place] += seconds
