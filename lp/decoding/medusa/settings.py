"""The settings of Medusa decoding."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

EXACT, TYPICAL = "exact", "typical"


@dataclass
class Medusa:
    """Drafts from the heads of the model (Medusa, arXiv 2401.10774), which model.heads names.

    max_rows: the most rows of a step; the tree's are the likeliest by the heads' probabilities. candidates: the best
    tokens taken from each head. verify: "exact" accepts a draft if it is the model's own token; "typical" is lossy:
    when sampling it also accepts a draft that the model finds likely enough (section 2.3.1 of the paper), so the text
    is not distributed as the model's. exact: demands the model's own text; verify=typical needs exact=false. epsilon,
    delta: the lossy verify=typical accepts a draft if its probability is above min(epsilon, delta * exp(-entropy)).
    """

    method: ClassVar[str] = "medusa"
    max_rows: int = 16
    candidates: int = 6
    verify: str = EXACT
    exact: bool = True
    epsilon: float = 0.09
    delta: float = 0.3

    def check(self) -> None:
        """Raises ValueError naming the first value that cannot be used."""
        if self.verify not in (EXACT, TYPICAL):
            raise ValueError(f"decode.verify={self.verify} must be {EXACT}, or {TYPICAL}, which is lossy")
        if self.verify == TYPICAL and self.exact:
            raise ValueError(
                "decode.verify=typical is lossy: it gives other text than the model, but decode.exact=true demands the "
                "model's own; set decode.exact=false, or decode.verify=exact"
            )
        for name in ("epsilon", "delta"):
            if not 0 < (value := getattr(self, name)) <= 1 or math.isnan(value):
                raise ValueError(f"decode.{name}={value:g} must be above 0 and at most 1")

    @property
    def is_lossy(self) -> bool:
        """Whether the text may be another than the model's."""
        return self.verify == TYPICAL
