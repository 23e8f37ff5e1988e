"""The settings of drafts by a second model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

# How drafts are verified.
EXACT, REJECTION = "exact", "rejection"


@dataclass
class DraftModel:
    """Drafts from a second model (arXiv 2211.17192) in a tree, as large as pays off. The engine's setting `draft` says
    which model.

    depth: the most drafts that follow one another. max_rows: the most rows of a step. rows: use this many rows whatever
    they cost; 0 takes as many as pay off. verify: "exact" accepts a draft if the model chooses the same token, so that
    the text is the same as without drafts; "rejection" is classical rejection sampling of a chain of drafts, whose text
    is distributed alike, but is another one than plain sampling gives with the same seed.
    """

    method: ClassVar[str] = "draft_model"
    depth: int = 8
    max_rows: int = 32
    rows: int = 0
    verify: str = EXACT

    def check(self) -> None:
        """Raises ValueError for an unknown rule of verification."""
        if self.verify not in (EXACT, REJECTION):
            raise ValueError(f"decode.verify={self.verify} must be {EXACT} or {REJECTION}")
