"""A model's answers to trees under known greedy texts. Each is computed once, however often it is asked for.

The answer to a row depends on the row's path alone, so streams that continue the same text share what was computed.

    R rows of a tree, K candidates of a row
"""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import dataclass
from itertools import count

import numpy as np

from lp.model.checkpoint import Checkpoint
from lp.request import Sequence
from lp.runner.runner import StepInput
from lp.runner.single_device import SingleDevice
from lp.sampling.settings import Sampling
from lp.tree import Answers, TokenTree, chain
from parallel.runners.partition import closure


@dataclass
class KnownText:
    """A prompt and its greedy continuation.

    The paths that were ever asked for are numbered: n is the path that ends with the n-th token after the prompt's last
    one, and further numbers are paths that leave the text. below: the number of a path with one more token, by the
    number of the path and the token. answers: [K] for each path; None where it is not known.
    """

    sequence: Sequence
    below: dict[tuple[int, int], int]
    answers: list[np.ndarray | None]

    @property
    def tokens(self) -> list[int]:
        return self.sequence.tokens

    @property
    def start(self) -> int:
        """The length of the prompt."""
        return self.sequence.prompt_length

    def numbers(self, length: int, tree: TokenTree) -> list[int]:
        """The number of each row's path. length: tokens of the text up to the tree's root, which is one of them."""
        found = [length - self.start]
        for token, parent in zip(tree.tokens[1:].tolist(), tree.parents[1:].tolist(), strict=True):
            key = found[parent], token
            if key not in self.below:
                self.below[key] = len(self.answers)
                self.answers.append(None)
            found.append(self.below[key])
        return found


class KnownAnswers:
    """Greedy texts of a checkpoint, and the answers to trees under them.

    num_computed: rows that the model had to compute for `answer`.
    """

    def __init__(self, checkpoint: Checkpoint, prompts: Items[list[int]], num_new: int, num_candidates: int):
        """Decodes all prompts together. Those whose text ends before it has `num_new` tokens are left out.

        num_candidates: K, the most that a step asks for.
        """
        self.num_candidates = num_candidates
        self.num_computed = 0
        self._device = SingleDevice(checkpoint.model)
        self._names = (f"branch-{number}" for number in count())
        sequences = [
            Sequence(f"text-{number}", list(prompt), len(prompt), Sampling.greedy())
            for number, prompt in enumerate(prompts)
        ]
        self.texts = [KnownText(sequence, {}, []) for sequence in sequences]
        for sequence in sequences:
            self._device.open(sequence)
        for _ in range(num_new):
            self._lengthen(checkpoint.eos)
        for text in self.texts:
            text.answers.append(None)  # of the path of the whole text

    def _lengthen(self, eos: Items[int]) -> None:
        """Adds a token to every text; forgets the texts that end with it."""
        steps = [StepInput.of(one.sequence, chain(one.tokens[-1:]), self.num_candidates) for one in self.texts]
        going_on = []
        for text, answers in zip(self.texts, self._device.launch(steps)() if steps else [], strict=True):
            candidates = _candidates(answers)[0]
            token = int(candidates[0])
            if token in eos:
                self._device.close(text.sequence)
                continue
            text.below[len(text.answers), token] = len(text.answers) + 1
            text.answers.append(candidates)
            text.tokens.append(token)
            going_on.append(text)
        self.texts = going_on

    def answer(self, asked: Items[tuple[KnownText, StepInput]]) -> list[Answers]:
        """Answers steps whose sequences have the first tokens of their texts."""
        numbers = [text.numbers(len(step.sequence.tokens), step.tree) if len(step.tree) else [] for text, step in asked]
        self._compute(asked, numbers)
        return [
            _answers(np.stack([_known(text, number) for number in found]), step.num_candidates)
            if found
            else Answers.none()
            for (text, step), found in zip(asked, numbers, strict=True)
        ]

    def _compute(self, asked: Items[tuple[KnownText, StepInput]], numbers: Items[list[int]]) -> None:
        """Has the model compute what is not known, in one forward."""
        branches: list[tuple[KnownText, list[int], StepInput]] = []
        for (text, step), found in zip(asked, numbers, strict=True):
            missing = [row for row, number in enumerate(found) if text.answers[number] is None]
            if missing:
                rows = closure(step.tree, missing)
                length = len(step.sequence.tokens)
                sequence = Sequence(next(self._names), text.tokens[:length], text.start, step.sequence.sampling)
                self._device.open(sequence)
                self._device.copy(text.sequence, sequence, length - 1)
                taken = StepInput.of(sequence, step.tree.take(rows), self.num_candidates)
                branches.append((text, [found[row] for row in rows], taken))
                self.num_computed += len(rows)
        if not branches:
            return
        computed = self._device.launch([step for _, _, step in branches])()
        for (text, found, step), answers in zip(branches, computed, strict=True):
            self._device.close(step.sequence)
            for number, candidates in zip(found, _candidates(answers), strict=True):
                if text.answers[number] is None:
                    text.answers[number] = candidates


def _candidates(answers: Answers) -> np.ndarray:
    assert answers.candidates is not None
    return answers.candidates


def _known(text: KnownText, number: int) -> np.ndarray:
    candidates = text.answers[number]
    assert candidates is not None
    return candidates


def _answers(candidates_RK: np.ndarray, num_candidates: int) -> Answers:
    return Answers(candidates_RK[:, 0], candidates_RK[:, :num_candidates] if num_candidates else None)
