"""A model's heads, ready to guess for the rows of a step.

L rows of all sequences of a step, N of them that heads are asked for, D numbers of a hidden state, H heads,
G guesses of each
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from lp.model.gpu.device import current
from lp.model.heads.medusa import MedusaHeads, Output
from lp.platform.hardware import Download
from lp.tree import Ahead, Answers, Guesses


class AsksHeads(Protocol):
    """Rows of a sequence that are answered. choices: one for each. ahead: what heads are asked for; None is nothing.
    num_hidden: numbers of the hidden states that are reported; 0 is none.
    """

    @property
    def choices(self) -> np.ndarray: ...

    @property
    def ahead(self) -> Ahead | None: ...

    @property
    def num_hidden(self) -> int: ...


class LoadedHeads:
    """Heads that guess from the hidden states of a model."""

    def __init__(self, heads: MedusaHeads, output: Output):
        """output: the model's output embedding."""
        self._heads, self._output = heads, output

    def add_to(
        self, pending: Callable[[], list[Answers]], asked: Sequence[AsksHeads], hidden_LD: Tensor
    ) -> Callable[[], list[Answers]]:
        """Gives the device the work for the guesses of some sequences. Returns what waits for the answers with them.

        pending: waits for the answers of all sequences. asked: by each of them. hidden_LD: one sequence's rows lie
        behind the other's.
        """
        own: list[Tensor] = []
        end = 0
        for one in asked:
            begin, end = end, end + len(one.choices)
            own += [hidden_LD[begin:end]] if one.ahead else []
        most = max(one.ahead.num_guesses for one in asked if one.ahead)
        with current(hidden_LD.device), torch.inference_mode():
            tokens_NHG, odds_NHG = self._heads.best(torch.cat(own).to(self._heads.dtype), self._output, most)
            download = Download(torch.stack([tokens_NHG.int(), odds_NHG.contiguous().view(torch.int32)]))

        def wait() -> list[Answers]:
            answers, end = pending(), 0
            tokens, odds = download.wait()
            for of_sequence, one in zip(answers, asked, strict=True):
                if one.ahead:
                    begin, end = end, end + len(one.choices)
                    cut = slice(begin, end), slice(None), slice(one.ahead.num_guesses)
                    of_sequence.guesses = Guesses(tokens[cut], np.ascontiguousarray(odds[cut]).view(np.float32))
            return answers

        return wait
