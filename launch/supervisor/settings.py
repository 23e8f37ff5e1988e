"""Settings of the supervisor. Knows nothing of how ranks are started."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class SupervisorSettings:
    """When a rank is given up, and how often it is started again. Names that end in _s are seconds.

    answer_timeout_s: a rank that is silent for longer is left out. hang_timeout_s: a rank that has been left out for
    longer is killed. start_timeout_s: the time that a rank gets to load its model. backoff_s: the wait before a rank is
    started again that failed to start, or ended soon after; it doubles with each failure in a row. max_failed_starts:
    the number of starts in a row after which a rank is given up if none of them led to its serving.
    """

    answer_timeout_s: float = 3.0
    hang_timeout_s: float = 60.0
    start_timeout_s: float = 900.0
    backoff_s: float = 0.5
    max_failed_starts: int = 3

    def check(self) -> None:
        """Raises ValueError naming the first setting that is out of range."""
        for name in ("answer_timeout_s", "hang_timeout_s", "start_timeout_s", "backoff_s"):
            if getattr(self, name) <= 0:
                raise ValueError(f"supervisor.{name}={getattr(self, name):g} must be a positive number of seconds")
        if self.max_failed_starts < 1:
            raise ValueError(f"supervisor.max_failed_starts={self.max_failed_starts} must be at least 1")
