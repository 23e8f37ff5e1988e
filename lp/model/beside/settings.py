"""The settings of a second model. Knows nothing of what it is for."""

from __future__ import annotations

from dataclasses import dataclass

# The role of the model that drafts, and the name of its settings.
DRAFT = "draft"
# The role of the model with which decode=contrastive and decode=best_of compare: the name of its settings.
SECOND = "second"


@dataclass
class SecondModel:
    """A causal model that every rank holds whole beside its own part of the first one.

    path: folder, GGUF file or hub id of a model with the first one's vocabulary; empty is none. layers: the first
    layers of the first model itself, so many of them, in the place of another model; 0 is none.
    """

    path: str = ""
    layers: int = 0

    @property
    def is_there(self) -> bool:
        return bool(self.path or self.layers)

    def check(self, role: str) -> None:
        """Raises ValueError for settings that contradict each other. role: the settings' name, such as draft."""
        if self.layers < 0:
            raise ValueError(f"{role}.layers={self.layers} must be 0 (none) or a number of the model's first layers")
        if self.path and self.layers:
            raise ValueError(
                f"{role}.path={self.path} and {role}.layers={self.layers} both name a second model; leave one of them "
                "out"
            )
