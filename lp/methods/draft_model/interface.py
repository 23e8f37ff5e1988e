"""What a decoder asks of a second model, and what it gets."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from lp.decoder import Decoder, Waiting
from lp.methods.draft_model.growth import Growth


class Wish(NamedTuple):
    """A tree of drafts that is to be grown. text: what the second model holds of the sequence `tokens`."""

    text: SecondText
    tokens: Sequence[int]
    growth: Growth


class SecondText(Protocol):
    """What a second model holds of one sequence; all of it can be computed again from the tokens.

    relative_cost: seconds of a forward of the second model with one row, divided by those of a plain step.
    relative_row_cost: the same of each further row. max_length: the most
    tokens that the second model can be given. reads_text: whether it must read a text before it drafts.
    """

    relative_cost: float
    relative_row_cost: float
    max_length: int
    reads_text: bool

    def draft(self, wishes: Sequence[Wish], is_alone: bool) -> None:
        """Grows the trees of sequences, this one included, which all are of the same second model.

        is_alone: whether no other request waits for this; otherwise a long text is read over several steps.
        """
        ...


class DraftedDecoder(Decoder):
    """A decoder with drafts of a second model."""

    @abstractmethod
    def wish(self, tokens: Sequence[int], room: int, wanted: int, load: int) -> Wish:
        """What is asked of the second model for the next step. The others: see Decoder.plan and Decoder.propose."""

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
    wishes[0].text.draft(wishes, is_alone=load == 1)
