"""Rows for which tokens are to be chosen, each with how that is done, and what choosers answer.

Rows of many sequences, with settings of their own, lie in one array. Knows nothing of trees.

    R rows, V vocabulary, K tokens chosen for each row
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from lp.platform.hardware import upload
from lp.sampling.settings import Sampling

# How a row's token is chosen, in 32 bytes. key: what its noise is made of. num_tokens: K, 0 for rows whose token nobody
# wants. is_drawn: whether it gets noise. top_k, min_p: 0 is off. top_p: 1 is off.
LAYOUT = np.dtype(
    [
        ("key", np.int64), ("num_tokens", np.int32), ("is_drawn", np.int32), ("temperature", np.float32),
        ("top_p", np.float32), ("min_p", np.float32), ("top_k", np.int32),
    ]
)  # fmt: skip


def layout_of(sampling: Sampling, num_tokens: int) -> np.ndarray:
    """int64 [1, 4], as LAYOUT: what all rows with these settings have in common. They are not drawn. num_tokens: K."""
    made = np.zeros(1, LAYOUT)
    made["num_tokens"] = num_tokens
    made["temperature"] = sampling.temperature or 1.0
    if sampling.temperature:
        made["top_p"] = 1.0 if sampling.top_p is None else sampling.top_p
        made["min_p"] = sampling.min_p or 0.0
        made["top_k"] = sampling.top_k or 0
    else:
        made["top_p"] = 1.0
    return made.view(np.int64).reshape(1, -1)


class OnDevice(NamedTuple):
    """The settings of rows as columns [R, 1] on a device. keys: int64. is_drawn: bool. top_k: int64. Others float32."""

    keys: Tensor
    is_drawn: Tensor
    temperature: Tensor
    top_p: Tensor
    min_p: Tensor
    top_k: Tensor


class Rows(NamedTuple):
    """The rows for which tokens are to be chosen.

    scores: float32 [R, V] before the warpers. choices: int64 [R, 4], as LAYOUT. dropped: [R] float32, the share of
    probability that top-p drops, 1 - top_p rounded once. positions: [R] int64, the places in their sequences of the
    tokens to choose.
    """

    scores: Tensor
    choices: np.ndarray
    dropped: np.ndarray
    positions: np.ndarray

    def take(self, rows: np.ndarray) -> Rows:
        """Only the rows of these numbers."""
        some = upload(rows, self.scores.device)
        return Rows(self.scores[some], self.choices[rows], self.dropped[rows], self.positions[rows])

    def parts(self) -> list[Rows]:
        """Splits the rows into parts small enough for a part's scores to stay in a CPU's cache, or to take little of a
        GPU's memory.
        """
        num_rows = max(1, (1 << 20 if self.scores.device.type == "cpu" else 1 << 26) // self.scores.shape[1])
        if len(self.scores) <= num_rows:
            return [self]
        slices = [slice(start, start + num_rows) for start in range(0, len(self.scores), num_rows)]
        return [
            Rows(self.scores[some], self.choices[some], self.dropped[some], self.positions[some]) for some in slices
        ]

    def uploaded(self) -> Tensor:
        """int64 [R, 4] on the scores' device, as LAYOUT."""
        return upload(self.choices, self.scores.device)

    def on_device(self) -> OnDevice:
        choices = self.uploaded()
        words, floats = choices.view(torch.int32), choices.view(torch.float32)
        return OnDevice(
            choices[:, :1], words[:, 3:4] != 0, floats[:, 4:5], floats[:, 5:6], floats[:, 6:7], words[:, 7:8].long()
        )

    def setting(self, name: str) -> np.ndarray:
        """[R] a setting of each row, by its name in LAYOUT."""
        return self.choices.view(LAYOUT)[:, 0][name]

    def any(self, name: str) -> bool:
        """Whether a row has this setting: `temperature`, `top_k`, `top_p`, `min_p` or `is_drawn`."""
        values = self.setting(name)
        return bool((values != 1).any() if name in ("temperature", "top_p") else values.any())


class Chooser(ABC):
    """Chooses tokens for rows. Equal choosers do the same, so one of them may choose for the rows of all.

    graph_kind: of the graphs' choosing that does the same; None for none.
    """

    @property
    def graph_kind(self) -> str | None:
        return None

    def find(self, rows: Rows) -> np.ndarray | None:
        """int32 [R, K] the tokens of all rows, found by the library; None where it cannot find all of them."""
        return None

    @abstractmethod
    def __call__(self, rows: Rows) -> Tensor:
        """Integers [R, 1 + K], or more columns: 0 if the row's first token may be wrong, then its tokens, best first.

        The tokens of rows that hold a NaN are NOT_A_TOKEN. At most V tokens are chosen.
        """
