"""The log-probabilities of tokens under the model's own distribution, before any processing.

R rows, V vocabulary, T likeliest tokens of a row
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from lp.platform.hardware import Download, upload
from lp.sampling.top_k import top_tokens
from lp.tree import Answers

# The most likeliest tokens that a request may ask for; see Sampling.check. As many are always found, so that which of
# several equally likely ones come first does not depend on how many are asked for. A beam search may need more.
MOST_LIKELIEST = 20


def logprobs(logits_RV: Tensor, targets_R1: Tensor, num_likeliest: int) -> Tensor:
    """int32 [R, 1 + 2T], floats by their bits: the target's log-probability, the T = num_likeliest likeliest tokens,
    their log-probabilities.
    """
    logs_RV = logits_RV.log_softmax(dim=1)
    of_targets = _bits(logs_RV.gather(1, targets_R1.clamp(min=0)))
    if not num_likeliest:
        return of_targets
    found = top_tokens(logits_RV, min(max(MOST_LIKELIEST, num_likeliest), logits_RV.shape[1]))
    order = found.values.sort(dim=1, descending=True, stable=True).indices[:, :num_likeliest]
    tokens_RT = found.tokens.gather(1, order)
    return torch.cat([of_targets, tokens_RT.int(), _bits(logs_RV.gather(1, tokens_RT))], dim=1)


def _bits(values: Tensor) -> Tensor:
    """The int32 values that have the bits of these floats."""
    return values.contiguous().view(torch.int32)


@dataclass
class LogProbabilities:
    """Log-probabilities that a device has been asked for, of the rows of some sequences.

    numbers: of the sequences. num_rows, num_likeliest: of each of them, its rows and T. packed: int32 [all rows, 1 + 2
    * most] on the device. most: the largest T. logits: [all rows, V].
    """

    numbers: list[int]
    num_rows: list[int]
    num_likeliest: list[int]
    packed: Tensor
    most: int
    logits: Tensor

    @staticmethod
    def launch(
        numbers: list[int], num_rows: list[int], num_likeliest: list[int], logits: Tensor, targets: Tensor
    ) -> LogProbabilities:
        """Gives the device its work. targets: int [all rows, 1]."""
        most = max(num_likeliest)
        return LogProbabilities(
            numbers, num_rows, num_likeliest, logprobs(logits, targets.long(), most), most, logits
        )  # fmt: skip

    def add_to(self, answers: list[Answers], late: list[np.ndarray], downloaded: np.ndarray) -> None:
        """Adds them to the answers of all sequences. late: which rows' targets were not what the device had been given,
        bool [R] of each sequence. downloaded: what was packed, as integers of any width.
        """
        table = downloaded.astype(np.int32).reshape(-1, 1 + 2 * self.most)
        self._renew(table, answers, late)
        floats, end = table.view(np.float32), 0
        for number, size, num in zip(self.numbers, self.num_rows, self.num_likeliest, strict=True):
            begin, end = end, end + size
            own = answers[number]
            own.logprobs, own.top_tokens = floats[begin:end, 0], table[begin:end, 1 : 1 + num]
            own.top_logprobs = floats[begin:end, 1 + self.most : 1 + self.most + num]

    def _renew(self, table: np.ndarray, answers: list[Answers], late: list[np.ndarray]) -> None:
        rows = np.flatnonzero(np.concatenate([late[number] for number in self.numbers]))
        if len(rows):
            targets = np.concatenate([answers[number].targets for number in self.numbers])[rows].astype(np.int64)
            logits = self.logits[upload(rows, self.logits.device)]
            table[rows, :1] = Download(logprobs(logits, upload(targets, logits.device)[:, None], 0)).wait()
