"""The states of one sequence's recurrent layers, which sum up all of its tokens.

A state is as large after one token as after many, and no token can be taken out of it. So a cache has the state after
its last token, and snapshots after some earlier ones: to drop tokens is to go back to a snapshot. The rows of a step
leave what their layers need to advance the state by those of them that are kept.

Nothing writes to the tensors of a state, so states and snapshots of several sequences may share them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import torch
from torch import Tensor

# What one layer keeps of all tokens so far.
State = tuple[Tensor, ...]
# Tokens between two snapshots. Where that makes more than MOST_SNAPSHOTS, the distance is doubled.
SPACING, MOST_SNAPSHOTS = 256, 8
# The most states of one sequence: the present one, the snapshots, that of the mark and that which is held.
MOST_STATES = MOST_SNAPSHOTS + 3


class StepStates(Protocol):
    """What a step leaves of one layer.

    passed: the state after so many first rows, each of which is the next one's parent; at least after none. `replay`
    advances from the last of them.
    """

    passed: dict[int, State]

    def replay(self, state: State, rows: Sequence[int]) -> State:
        """The state after `rows`, a part of a path, where `state` is that after the first of them's parent."""
        ...


class RecurrentStates:
    """The states of all recurrent layers that are held here, after the cached tokens.

    mark: a number of tokens after which a snapshot is made in any case; None is none.
    """

    def __init__(self, mark: int | None = None) -> None:
        self.mark = mark
        self._length = 0
        self._present: dict[int, State] = {}
        self._snapshots: dict[int, dict[int, State]] = {}
        self._held: tuple[int, dict[int, State]] = 0, {}
        self._spacing = SPACING
        self._step: dict[int, StepStates] = {}

    def state(self, layer: int) -> State | None:
        """The state of a layer; None before the first token."""
        return self._present.get(layer)

    def note(self, layer: int, step: StepStates) -> None:
        """Notes what the step at hand leaves of a layer."""
        self._step[layer] = step

    def stops(self, begin: int, end: int) -> list[int]:
        """The numbers of tokens, more than `begin` and less than `end`, after which snapshots are made."""
        first = begin // self._spacing + 1
        stops = {number * self._spacing for number in range(first, -(-end // self._spacing))}
        if self.mark is not None and begin < self.mark < end:
            stops.add(self.mark)
        return sorted(stops)

    @torch.inference_mode()
    def keep(self, rows: Sequence[int]) -> int:
        """Advances the states by rows of the last step, a path from its first row on. Returns how many are kept.

        That may be fewer, if the path is shorter than the first rows whose states are known.
        """
        step, self._step = self._step, {}
        if not rows or not step:
            self._length += len(rows)
            return len(rows)
        passed = sorted(next(iter(step.values())).passed)
        known = max(number for number in passed if number <= len(rows) and (not number or rows[number - 1] < number))
        num_kept = len(rows) if known == passed[-1] else known
        begin = self._length
        for number in passed:
            if number <= known:
                self._move(begin + number, {layer: one.passed[number] for layer, one in step.items()})
        at = known
        for stop in [*self.stops(begin + known, begin + num_kept), begin + num_kept]:
            if part := rows[at : stop - begin]:
                self._move(stop, {layer: one.replay(self._present[layer], part) for layer, one in step.items()})
            at = stop - begin
        return num_kept

    def _move(self, length: int, states: dict[int, State]) -> None:
        """Makes these the present states, and a snapshot of them where one is wanted."""
        self._length, self._present = length, states
        if length and (length % self._spacing == 0 or length == self.mark):
            self._snapshots[length] = states
            while sum(place != self.mark for place in self._snapshots) > MOST_SNAPSHOTS:
                self._spacing *= 2
                self._snapshots = {
                    place: kept
                    for place, kept in self._snapshots.items()
                    if place % self._spacing == 0 or place == self.mark
                }

    def hold(self) -> None:
        """Makes a snapshot of the present states, in the place of the one that was held before."""
        self._held = self._length, self._present

    def _all(self) -> Iterator[tuple[int, dict[int, State]]]:
        """All states that are known, with the numbers of tokens."""
        yield 0, {}
        yield from self._snapshots.items()
        yield self._held
        yield self._length, self._present

    def shorten(self, length: int) -> int:
        """Goes back to the last known states after at most so many tokens. Returns after how many that is."""
        self._step = {}
        self._length, self._present = max(
            (known for known in self._all() if known[0] <= length), key=lambda known: known[0]
        )
        self._snapshots = {place: kept for place, kept in self._snapshots.items() if place <= self._length}
        if self._held[0] > self._length:
            self._held = 0, {}
        return self._length

    def fork(self, length: int) -> tuple[RecurrentStates, int]:
        """The states of another sequence with the same first tokens: see `shorten`."""
        copy = RecurrentStates(self.mark)
        copy._length, copy._present, copy._spacing = self._length, self._present, self._spacing
        copy._snapshots, copy._held = dict(self._snapshots), self._held
        return copy, copy.shorten(length)

    def clear(self) -> None:
        """Forgets all states, but not the mark."""
        self.shorten(0)
        self._spacing = SPACING

    @property
    def num_bytes(self) -> int:
        """Bytes of all states."""
        tensors = {id(part): part for _, states in self._all() for state in states.values() for part in state}
        return sum(part.numel() * part.element_size() for part in tensors.values())


def copied_length(length: int, num_computed: int, mark: int) -> int:
    """Returns the number of first tokens whose states another sequence gets, where `length` are wanted.

    It follows from numbers of tokens alone: of those that are computed of a sequence with this mark. A cache may have
    less, as it may have lost its states for a while.
    """
    if length >= num_computed:
        return num_computed
    spacing = SPACING
    while num_computed // spacing > MOST_SNAPSHOTS:
        spacing *= 2
    at_spacing = length // spacing * spacing
    return max(at_spacing, mark) if mark <= length else at_spacing
