"""The settings of how steps are filled, as a user or a configuration file gives them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class PrefixReuse(StrEnum):
    """Whose finished sequences a request may begin from, if it begins with the same tokens.

    off: nobody's. owner: those of the same API key; without keys, all requests have the same owner. all: everybody's,
    though how fast an answer comes then tells what others have asked.
    """

    off = "off"
    owner = "owner"
    all = "all"


@dataclass
class SchedulerSettings:
    """How steps are filled.

    max_step_rows: the most rows that a rank computes in a step in which other requests decode: a prompt is
    prefilled in chunks of what is left of them. None takes as many as make a step 1.6 times as long as usual, by the
    measured step times, and up to twice as many where several prompts wait for each request that decodes. prefix_reuse:
    whose keys and values are used again. max_prefixes: the most finished sequences whose keys and values are kept for
    that, as long as there is room for them.
    """

    max_step_rows: int | None = None
    prefix_reuse: PrefixReuse = PrefixReuse.off
    max_prefixes: int = 64

    def check(self) -> None:
        """Raises ValueError for a number that cannot be."""
        if self.max_step_rows is not None and self.max_step_rows < 1:
            raise ValueError(f"scheduler.max_step_rows={self.max_step_rows} must be at least 1, or left out")
        if self.max_prefixes < 1:
            raise ValueError(
                f"scheduler.max_prefixes={self.max_prefixes} must be at least 1; scheduler.prefix_reuse=off keeps none"
            )
