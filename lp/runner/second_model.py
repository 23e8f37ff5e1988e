"""A second model that runs the rows of some sequences as well, so that its logits can be compared with the first one's.

It has keys and values of its own, and computes what it lacks of a sequence by itself: nothing of it is ever sent.

    R rows of a step's tree, V vocabulary
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from lp.model.causal import CausalModel
from lp.model.fast_forward import SequenceRows
from lp.request import Sequence as TokenSequence
from lp.runner.runner import StepInput
from lp.runner.sequence_state import CachedTokens
from lp.sampling.batch import Asked
from lp.tree import NO_ROWS


class SecondModelStates:
    """A second model and what it holds. Sequences that ask nothing of it are not known here."""

    def __init__(self, model: CausalModel, prefill_chunk: int):
        """prefill_chunk: most rows of a prompt in one forward."""
        self.model, self.prefill_chunk = model, prefill_chunk
        self.states: dict[str, CachedTokens] = {}

    def open(self, sequence: TokenSequence) -> None:
        if sequence.needs_second:
            self.states[sequence.id] = CachedTokens(self.model.make_cache(len(sequence.tokens) + 1))

    def copy(self, source: TokenSequence, target: TokenSequence, length: int) -> None:
        """See Runner.copy. Nothing happens unless both are here."""
        if source.id in self.states and target.id in self.states:
            self.states[target.id].take_from(self.states[source.id], source.tokens, length)

    def drop(self, sequence: TokenSequence) -> None:
        if sequence.id in self.states:
            self.states[sequence.id].drop()

    def close(self, sequence: TokenSequence) -> None:
        if state := self.states.pop(sequence.id, None):
            state.cache.release()

    def add_to(self, asked: Sequence[Asked], steps: Sequence[StepInput]) -> list[Asked]:
        """What is asked of steps, with this model's logits where they are needed.

        asked: of each step that has a tree, in the order of the steps. Prompts are prefilled here, too.
        """
        own = [step for step in steps if step.sequence.id in self.states]
        found = self._logits([_without_scores(step) for step in own]) if own else {}
        with_tree = [step for step in steps if len(step.tree)]
        return [one._replace(second=found.get(step.sequence.id)) for one, step in zip(asked, with_tree, strict=True)]

    def _logits(self, steps: list[StepInput]) -> dict[str, Tensor]:
        """float32 [R, V] for the rows of each step's tree, by the sequence's id; none for steps without a tree."""
        self._make_room(steps)
        given = [self._rows(step) for step in steps]
        given = [rows for rows in given if len(rows.tree)]
        if not given:
            return {}
        logits = self.model.forward_many(given).split([rows.num_logits for rows in given])
        names = [step.sequence.id for step in steps if len(self.states[step.sequence.id].last)]
        return {name: own for name, own in zip(names, logits, strict=True) if len(own)}

    def _make_room(self, steps: list[StepInput]) -> None:
        """Keeps what was accepted, and makes room for all steps, so that nothing of one is evicted for another."""
        needs = []
        for step in steps:
            state = self.states[step.sequence.id]
            state.keep_accepted(step.sequence.tokens)
            needs.append((state.cache, max(0, step.num_computed - state.cache.length) + len(step.tree)))
        self.model.memory.reserve(needs)

    def _rows(self, step: StepInput) -> SequenceRows:
        state = self.states[step.sequence.id]
        for part in state.prefill(step, self.prefill_chunk):
            self.model.forward_many([SequenceRows(part, state.cache, 0)])
        return SequenceRows(state.attach(step), state.cache, len(step.tree))


def _without_scores(step: StepInput) -> StepInput:
    """The step without rows that score a prompt: this model computes such tokens once it needs them."""
    return step if step.tree.scored is None else replace(step, tree=NO_ROWS)
