"""What a decoder asks of a second model, and what it gets."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import ClassVar, NamedTuple, Protocol

import numpy as np

from lp.decoder import AheadDecoder, AheadOf, AheadYields, DraftedEnd, Waiting
from lp.methods.draft_model.ahead import NUM_INTEGERS, Found, GrowthAhead, ends_drafted_for, extend
from lp.methods.draft_model.asking import AheadWorth
from lp.methods.draft_model.growth import Growth
from lp.tree import greatest_depth

# The names of its drafts in statistics and traces: those made before a step, and those made ahead of it.
SOURCE, SOURCE_AHEAD = "draft_model", "draft_ahead"


class Wish(NamedTuple):
    """A tree of drafts that is to be grown. text: what the second model holds of the sequence `tokens`."""

    text: SecondText
    tokens: Sequence[int]
    growth: Growth


class SecondText(Protocol):
    """What a second model holds of one sequence; all of it can be computed again from the tokens.

    relative_cost: seconds of a forward of the second model with one row, divided by those of a plain step.
    relative_costs: the same with each of ROUND_ROWS. max_length: the most tokens that the second model can be given.
    reads_text: whether it must read a text before it drafts. is_ahead: whether it drafts only on ranks that have no
    part in a step, while others compute it; then nothing is drafted before a step.
    """

    relative_cost: float
    relative_costs: Sequence[float]
    max_length: int
    reads_text: bool
    is_ahead: bool

    def draft(self, wishes: Sequence[Wish], is_alone: bool) -> None:
        """Grows the trees of sequences, this one included, which all are of the same second model.

        is_alone: whether no other request waits for this; otherwise a long text is read over several steps.
        """
        ...

    def draft_ahead(self, wishes: Sequence[Wish], time: float) -> None:
        """The same while their steps are computed, in about so much time, in plain steps."""
        ...


class DraftedDecoder(AheadDecoder):
    """A decoder with drafts of a second model."""

    num_ahead: ClassVar[int] = NUM_INTEGERS

    def __init__(self, text: SecondText, depth: int, worth: AheadWorth):
        """depth: the most drafts that follow one another. worth: of drafts that are made ahead."""
        self._text, self._depth, self._worth = text, depth, worth
        # For the root and each draft of the tree its node of what has grown.
        self._rows = [0]
        # Whether others drafted ahead of the last step. If they draft ahead of the one that is computed now, the nodes
        # that each of them has asked about, and the longest time that one of them took, in plain steps.
        self._follows_ahead = False
        self._asked: list[list[int]] | None = None
        self._drafting_time = 0.0
        # What is known of the tree of the next step, drafted ahead, and the most drafts that can follow its root.
        self._found: Found | None = None
        self._greatest_depth = 0

    @abstractmethod
    def wish(self, tokens: Sequence[int], room: int, wanted: int, load: int) -> Wish:
        """What is asked of the second model for the next step. The others: see Decoder.plan and Decoder.propose."""

    @property
    def source(self) -> str:
        return SOURCE_AHEAD if self._text.is_ahead else SOURCE

    @property
    @abstractmethod
    def grown(self) -> Growth:
        """What has grown for the step that is computed now."""

    @property
    @abstractmethod
    def step_time(self) -> float:
        """About the time of the step that is computed now, in plain steps."""

    def _limit_depth(self, tokens: Sequence[int], room: int, wanted: int) -> int:
        """The most drafts that may follow one another in the next step."""
        self._greatest_depth = max(0, min(greatest_depth(room, wanted), self._text.max_length - len(tokens)))
        return min(self._depth, self._greatest_depth)

    def _plant(self, growth: Growth) -> None:
        """Adds what was drafted ahead to the growth of the next step."""
        if self._found:
            self._found.plant(growth)
            self._found = None

    def _end_with(self, tokens: Sequence[int]) -> bool | None:
        """Finds what was drafted below the end of the step that is committed, and learns what was drafted ahead of it.

        tokens: that it has yielded. Returns what Drafted.is_covered says.
        """
        if not self._text.is_ahead:
            return None
        self._found = Found(self.grown).follow(tokens)
        is_ahead, self._asked = self._asked is not None, None
        longer = max(0.0, self._drafting_time - self.step_time) if is_ahead else None
        self._worth.learn(len(tokens), len(self.tree), longer)
        self._follows_ahead = is_ahead
        return (self._found is not None and self._found.has_drafts) if is_ahead else None

    def follow(self, tokens: Sequence[int], more: Sequence[int]) -> None:
        self._found = self._found and self._found.follow(more)

    @property
    def yields(self) -> AheadYields:
        return self._worth.yields

    def ahead_of(self, tokens: Sequence[int]) -> AheadOf | None:
        return AheadOf(self, tokens) if self._text.is_ahead else None

    def draft_ahead(self, steps: Sequence[AheadOf], place: int, num_places: int) -> list[np.ndarray]:
        wishes, growths = list[Wish](), list[GrowthAhead]()
        for decoder, tokens in steps:
            assert isinstance(decoder, DraftedDecoder)
            depth = min(decoder.tree.depths.max() + 1 + decoder._depth, decoder._greatest_depth)
            growth = GrowthAhead(decoder.grown, int(depth), decoder.step_time, place, num_places)
            growths.append(growth)
            wishes.append(Wish(decoder._text, tokens, growth))
        self._text.draft_ahead(wishes, self.step_time)
        return [growth.message() for growth in growths]

    def take_ahead(self, found: np.ndarray) -> None:
        self._asked, self._drafting_time = extend(self.grown, found)

    def _ends(self) -> list[DraftedEnd]:
        """The ends of the step for which others have drafted."""
        return ends_drafted_for(self.grown, self._asked or [], self._rows)

    @property
    def prepare(self) -> Callable[[Sequence[Waiting], int], None]:
        return draft_together


def draft_together(waiting: Sequence[Waiting], load: int) -> None:
    """Has the second model draft for several sequences of a step, at least one, in the same forwards.

    load: sequences of the step.
    """
    wishes = list[Wish]()
    for decoder, tokens, room, wanted in waiting:
        assert isinstance(decoder, DraftedDecoder)
        wishes.append(decoder.wish(tokens, room, wanted, load))
    if asked := [wish for wish in wishes if not wish.text.is_ahead]:
        asked[0].text.draft(asked, is_alone=load == 1)
