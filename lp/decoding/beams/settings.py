"""The settings of a beam search."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

# When a beam search ends; see Beam.
EARLY_STOPPING = ("false", "true", "never")


@dataclass
class Beam:
    """Beam search for the likeliest texts, as in transformers' `generate`. The text comes at the end, all at once.

    num_beams: hypotheses that go on after each step. length_penalty: the score of a text is the sum of its tokens'
    log-probabilities, divided by its length to this power. early_stopping: "true" ends when num_beams texts are
    finished, "false" when the best running one is unlikely to become better than those, "never" when it cannot.
    num_return_sequences: the texts that are returned, best first. best_first: expands the best hypothesis of any length
    (arXiv 2007.03909), which needs fewer calls of the model; only with length_penalty=0 and early_stopping=never.
    """

    method: ClassVar[str] = "beam"
    num_beams: int = 4
    length_penalty: float = 1.0
    early_stopping: str = "false"
    num_return_sequences: int = 1
    best_first: bool = False

    def check(self) -> None:
        """Raises ValueError naming the first setting that does not fit the others."""
        if self.early_stopping not in EARLY_STOPPING:
            raise ValueError(f"decode.early_stopping={self.early_stopping} must be one of {', '.join(EARLY_STOPPING)}")
        if self.num_return_sequences > self.num_beams:
            raise ValueError(
                f"decode.num_return_sequences={self.num_return_sequences} is more than "
                f"decode.num_beams={self.num_beams}"
            )
        if self.best_first and (self.length_penalty or self.early_stopping != "never"):
            raise ValueError(
                "decode.best_first=true needs scores that never rise as a text grows: set decode.length_penalty=0 "
                "and decode.early_stopping=never"
            )
