"""What a decoder asks of a second model, and what it gets."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from lp.decoding.by_model.growth import Growth


class Wish(NamedTuple):
    """A tree of drafts that is to be grown. text: what the second model holds of the sequence `tokens`."""

    text: SecondText
    tokens: Sequence[int]
    growth: Growth


class SecondText(Protocol):
    """What a second model holds of one sequence; all of it can be computed again from the tokens.

    relative_cost: seconds of a forward of the second model, divided by those of a plain step. max_length: the most
    tokens that the second model can be given.
    """

    relative_cost: float
    max_length: int

    def draft(self, wishes: Sequence[Wish], is_alone: bool) -> None:
        """Grows the trees of sequences, this one included, which all are of the same second model.

        is_alone: whether no other request waits for this; otherwise a long text is read over several steps.
        """
        ...


class AsksSecondModel(ABC):
    """A decoder with drafts of a second model, which `draft_together` asks for those of several sequences."""

    @abstractmethod
    def wish(self, tokens: Sequence[int], room: int, wanted: int, load: int) -> Wish:
        """What is asked of the second model for the next step. The others: see Decoder.plan and Decoder.offer."""


def draft_together(asked: Sequence[tuple[AsksSecondModel, Sequence[int], int, int]], load: int) -> None:
    """Has the second model draft for several sequences of a step, at least one, in the same forwards.

    asked: of each sequence, its decoder and the arguments of `Decoder.plan`. load: sequences of the step.
    """
    wishes = [decoder.wish(tokens, room, wanted, load) for decoder, tokens, room, wanted in asked]
    wishes[0].text.draft(wishes, is_alone=load == 1)
