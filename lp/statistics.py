"""Counts what a request cost and how many of its drafts were accepted. Knows nothing of how they were made.

Tokens per step and tokens per second are different figures.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import astuple, dataclass, field, replace
from typing import Any

from lp.tree import Drafted

# The fields that are sent to other processes.
COUNTED = (
    "prompt_tokens", "cached_tokens", "tokens", "steps", "rows", "accepted_lengths", "proposed", "accepted",
    "drafted_ahead", "ttft_s", "decode_s", "lossy",
)  # fmt: skip


@dataclass
class EngineCounts:
    """What an engine has done, for all requests together.

    steps: forwards, each of which may serve many requests. rows: of all their trees, and of prefills.
    sequences: how often a request took part in a step. expected: tokens that the trees were expected to yield.
    preemptions: how often a request lost its room.
    """

    steps: int = 0
    rows: int = 0
    sequences: int = 0
    expected: float = 0.0
    preemptions: int = 0

    def add(self, sequences: int, rows: int, expected: float) -> None:
        """Adds a step."""
        self.steps += 1
        self.sequences += sequences
        self.rows += rows
        self.expected += expected

    def to_list(self) -> list[float]:
        """JSON values of the counts, in their order."""
        return list(astuple(self))


@dataclass
class Statistics:
    """The counts of one request. A step is one forward pass; the first step includes the prompt.

    cached_tokens: those of the prompt that were not computed, as another sequence begins with the same ones. rows: tree
    rows of all steps, without the prompt's. accepted_lengths: number of steps by the number of tokens that they
    yielded. proposed, accepted: number of draft tokens by source. drafted_ahead: "steps" that other ranks drafted ahead
    of, and those whose end they had "expected"; empty if there are none. ttft_s: seconds from submission to the first
    token. decode_s: seconds from the start of the first step to the last token. lossy: what makes the text another than
    the model's own, such as "typical"; empty if nothing does.
    """

    prompt_tokens: int = 0
    cached_tokens: int = 0
    tokens: int = 0
    steps: int = 0
    rows: int = 0
    accepted_lengths: Counter[int] = field(default_factory=Counter)
    proposed: Counter[str] = field(default_factory=Counter)
    accepted: Counter[str] = field(default_factory=Counter)
    drafted_ahead: Counter[str] = field(default_factory=Counter)
    submitted_at: float = field(default_factory=time.monotonic)
    started_at: float | None = None
    ttft_s: float = 0.0
    decode_s: float = 0.0
    lossy: str = ""

    @property
    def tokens_per_step(self) -> float:
        return self.tokens / self.steps if self.steps else 0.0

    @property
    def tokens_per_s(self) -> float:
        return self.tokens / self.decode_s if self.decode_s else 0.0

    @property
    def rows_per_step(self) -> float:
        return self.rows / self.steps if self.steps else 0.0

    def start_step(self) -> None:
        """Marks the start of a step; only the first one's is recorded."""
        if self.started_at is None:
            self.started_at = time.monotonic()

    def end_step(self, num_rows: int, num_tokens: int, drafted: Drafted) -> None:
        """Counts a step. num_tokens: the tokens that it yielded, after a stop condition has cut them."""
        assert self.started_at is not None
        now = time.monotonic()
        if self.steps == 0:
            self.ttft_s = now - self.submitted_at
        self.decode_s = now - self.started_at
        self.steps += 1
        self.tokens += num_tokens
        self.rows += num_rows
        self.accepted_lengths[num_tokens] += 1
        if drafted.proposed:
            self.proposed.update(drafted.proposed)
            self.accepted.update(drafted.accepted[:num_tokens])
        if drafted.is_covered is not None:
            self.drafted_ahead.update(steps=1, expected=int(drafted.is_covered))

    def counts(self) -> dict[str, Any]:
        """JSON values of the counts, for `from_counts`."""
        return {name: getattr(self, name) for name in COUNTED}

    @staticmethod
    def from_counts(counts: dict[str, Any]) -> Statistics:
        """The inverse of `counts`."""
        lengths = Counter({int(length): number for length, number in counts["accepted_lengths"].items()})
        sources = {name: Counter(counts[name]) for name in ("proposed", "accepted", "drafted_ahead")}
        return Statistics(**{**counts, "accepted_lengths": lengths, **sources})

    def after(self, earlier: Statistics) -> Statistics:
        """These statistics of a resumed request, plus the steps, rows, drafts and seconds that it had cost before.

        Its tokens are not added up, as a resumed request counts those from before itself. Of its prompt, those tokens
        were cached that it found when it began.
        """
        if not (earlier.steps or earlier.tokens):
            return self
        return replace(
            self,
            cached_tokens=earlier.cached_tokens,
            steps=earlier.steps + self.steps,
            rows=earlier.rows + self.rows,
            accepted_lengths=earlier.accepted_lengths + self.accepted_lengths,
            proposed=earlier.proposed + self.proposed,
            accepted=earlier.accepted + self.accepted,
            drafted_ahead=earlier.drafted_ahead + self.drafted_ahead,
            ttft_s=earlier.ttft_s if earlier.tokens else self.ttft_s,
            decode_s=earlier.decode_s + self.decode_s,
        )

    def to_dict(self) -> dict[str, Any]:
        """Rounded figures for a report, as JSON values. `lossy` is there only if the text is, and `drafted_ahead` only
        if other ranks have drafted ahead.
        """
        return {
            "prompt_tokens": self.prompt_tokens,
            "cached_tokens": self.cached_tokens,
            "tokens": self.tokens,
            "steps": self.steps,
            "tokens_per_step": round(self.tokens_per_step, 4),
            "rows_per_step": round(self.rows_per_step, 2),
            "accepted_lengths": dict(sorted(self.accepted_lengths.items())),
            "proposed": dict(self.proposed),
            "accepted": dict(self.accepted),
            **({"drafted_ahead": dict(self.drafted_ahead)} if self.drafted_ahead else {}),
            "ttft_s": round(self.ttft_s, 6),
            "decode_s": round(self.decode_s, 6),
            "tokens_per_s": round(self.tokens_per_s, 3),
            **({"lossy": self.lossy} if self.lossy else {}),
        }
