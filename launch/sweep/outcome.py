"""The outcome of a measurement on one rank, for the runtime and the baselines alike."""

from __future__ import annotations

import dataclasses
import hashlib
import resource
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from launch.sweep.records import RankFigures, TextRecord


@dataclass
class Outcome:
    """The outcome of a measurement on one rank.

    figures: those of this rank; the other fields are about all texts. accepted_lengths: number of steps by the number
    of tokens that they yielded. rows: rows of the trees of all steps. seconds: time from the start of the first prompt
    to the end of the last text.
    """

    figures: RankFigures
    texts: list[TextRecord] = field(default_factory=list)
    accepted_lengths: Counter[int] = field(default_factory=Counter)
    rows: int = 0
    seconds: float = 0.0

    def of_texts(self) -> dict[str, Any]:
        """Returns all but the rank's figures, as JSON values under the names of Run's fields."""
        return {
            "texts": [dataclasses.asdict(text) for text in self.texts],
            "accepted_lengths": {str(length): count for length, count in sorted(self.accepted_lengths.items())},
            "rows": self.rows,
            "seconds": self.seconds,
        }


def digest(tokens: Sequence[int]) -> str:
    """Returns a digest that is equal for equal token ids."""
    return hashlib.sha256(repr(list(tokens)).encode()).hexdigest()[:16]


def peak_bytes(device: torch.device) -> int:
    """Returns the largest allocation so far on a GPU; on a CPU, the largest resident set of the process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    try:
        with open("/proc/self/status", encoding="ascii") as lines:  # getrusage would include the parent process
            return next(1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
    except (OSError, StopIteration):
        return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def fit(tokens: list[int], context: int, max_new_tokens: int) -> list[int]:
    """Returns the prompt's last tokens, so many that the new ones fit. Raises ValueError if there is no room."""
    room = context - max_new_tokens
    if room < 1:
        raise ValueError(
            f"workload.max_new_tokens={max_new_tokens} leaves no room for a prompt in a context of {context} tokens"
        )
    return tokens[-room:]
