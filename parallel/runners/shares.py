"""What the replicas compute of a step, and how much of its sequence each has computed so far.

All of this is the same on all ranks, because it follows from tokens and trees alone. It decides who computes what, and
never what is right: a rank whose cache has lost tokens computes them again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from lp.runner.runner import SharedBy, StepInput
from lp.trace import digit_of
from lp.tree import NO_ROWS, TokenTree


class Split(NamedTuple):
    """A part of a prompt that several replicas compute together.

    replicas: in the order of their tokens. bounds: where the tokens of each begin, and where those of the last end. A
    replica gets the keys and values of those before its own from the others, while these compute them.
    """

    replicas: tuple[int, ...]
    bounds: tuple[int, ...]


@dataclass(slots=True)
class Shares:
    """The replicas that take part in one step of one sequence.

    rows: by replica, the rows of the tree that it answers, ascending and closed under ancestors. All replicas together
    cover the tree; each of them first computes what it lacks of the sequence. feeds: by replica that answers nothing,
    how many of the sequence's first tokens it has computed after the step. split: what the replicas compute together
    before that; None if each computes what it lacks by itself.
    """

    rows: dict[int, Sequence[int]] = field(default_factory=dict)
    feeds: dict[int, int] = field(default_factory=dict)
    split: Split | None = None

    @staticmethod
    def whole(step: StepInput, replica: int) -> Shares:
        """One replica computes all of a step."""
        num_rows = len(step.tree)
        return Shares({replica: range(num_rows)}, {}) if num_rows else Shares({}, {replica: step.num_computed})

    def part(self, step: StepInput, replica: int) -> StepInput | None:
        """What a replica computes of the step; None if it takes no part."""
        if replica in self.rows:
            rows = self.rows[replica]
            return step if len(rows) == len(step.tree) else replace(step, tree=step.tree.take(rows))
        if replica in self.feeds:
            return replace(step, tree=NO_ROWS, num_computed=self.feeds[replica])
        return None


class KnownTokens:
    """How many of a sequence's first tokens each replica has computed.

    numbers: one for each replica, as `count` has left them.
    """

    def __init__(self, num_replicas: int):
        self.numbers = [0] * num_replicas
        self._rows: dict[int, Sequence[int]] = {}
        self._tree = NO_ROWS
        self._length = 0

    def note(self, tree: TokenTree, num_tokens: int, shares: Shares) -> None:
        """Notes who computes what of a step. num_tokens: length of the sequence before the step."""
        for replica, num_computed in shares.feeds.items():
            self.numbers[replica] = max(self.numbers[replica], num_computed)
        self._rows, self._tree, self._length = shares.rows, tree, num_tokens

    def count(self, tokens: Sequence[int]) -> list[int]:
        """Counts what became part of the sequence in the step that was noted last. Returns the numbers.

        tokens: the sequence, whose last token nobody counts. It may have been resumed with fewer tokens than before.
        """
        num_before, numbers = len(tokens) - 1, self.numbers
        if self._rows:
            for replica, rows in self._rows.items():
                if len(rows) == len(self._tree):  # all that was accepted is in it
                    numbers[replica] = num_before
                else:
                    accepted = list(tokens[self._length : -1])
                    numbers[replica] = self._length + self._tree.num_along(accepted, list(rows))
            self._rows = {}
        if max(numbers) > num_before:
            numbers[:] = [min(number, num_before) for number in numbers]
        return numbers


def idle_replicas(all_shares: Sequence[Shares], num_replicas: int) -> list[int]:
    """The replicas that have no part in a batch."""
    busy = {replica for shares in all_shares for replica in (*shares.rows, *shares.feeds)}
    return [replica for replica in range(num_replicas) if replica not in busy]


def shared_by(
    steps: Sequence[StepInput],
    numbers: Sequence[Sequence[int]],
    all_shares: Sequence[Shares],
    ranks_per_replica: int,
    drafting: Sequence[int] = (),
) -> SharedBy | None:
    """What a trace says of a batch. numbers: see Sharing.share. drafting: the ranks that draft ahead of it."""
    if not any([step.sequence.is_traced for step in steps]):
        return None
    ranks: dict[str, str] = {}
    loads = [0] * len(numbers[0])
    for step, known, shares in zip(steps, numbers, all_shares, strict=True):
        for replica, num_computed in shares.feeds.items():
            loads[replica] += max(0, num_computed - known[replica])
        digits = [""] * len(step.tree)
        for replica, rows in sorted(shares.rows.items(), reverse=True):  # the lowest replica's answers count
            loads[replica] += len(rows) + max(0, step.num_computed - known[replica])
            for row in rows:
                digits[row] = digit_of(replica * ranks_per_replica)
        if step.sequence.is_traced:
            ranks[step.sequence.id] = "".join(digits)
    return SharedBy(ranks, max(loads), drafting)
