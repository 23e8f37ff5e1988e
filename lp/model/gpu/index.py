"""Places in a row's array, as sums of loop variables: which statement wrote the number that another one reads.

A place is affine: a start, and variables that are multiplied by strides. To find where a statement wrote a place, the
place is divided by the statement's strides. Where that is not even, such as at the seam of two arrays that were joined,
a variable's range has to be split.
"""

from __future__ import annotations

from dataclasses import dataclass

from lp.model.program.steps import Operand

# A range of a variable is cut in so many runs at most; beyond that, it is split into every n-th number.
MOST_RUNS = 4


@dataclass(frozen=True)
class Variable:
    """Runs from 0 to size - 1."""

    name: str
    size: int


@dataclass(frozen=True)
class Index:
    """start + the sum of variables times strides, which are positive."""

    start: int = 0
    terms: tuple[tuple[Variable, int], ...] = ()

    @property
    def largest(self) -> int:
        return self.start + sum((variable.size - 1) * stride for variable, stride in self.terms)

    def times(self, factor: int) -> Index:
        return Index(self.start * factor, tuple((variable, stride * factor) for variable, stride in self.terms))

    def plus(self, other: Index) -> Index:
        strides = dict(self.terms)
        for variable, stride in other.terms:
            strides[variable] = strides.get(variable, 0) + stride
        return Index(self.start + other.start, tuple(strides.items()))


@dataclass(frozen=True)
class Piece:
    """A part of a variable's range: offset, offset + step, ... of them `size`."""

    offset: int
    step: int
    size: int

    def index(self, name: str) -> Index:
        if self.size == 1:
            return Index(self.offset)
        return Index(self.offset, ((Variable(name, self.size), self.step),))


class Split(Exception):
    """A variable's range must be split into pieces."""

    def __init__(self, variable: Variable, pieces: list[Piece]):
        super().__init__(f"{variable.name} must be split")
        self.variable = variable
        self.pieces = pieces


def place(operand: Operand, indices: list[Index]) -> Index:
    """Where an operand reads or writes, for the indices of a statement's dimensions."""
    at = Index(operand.start)
    for index, stride in zip(indices, operand.strides, strict=True):
        if stride:
            at = at.plus(index.times(stride))
    return at


def solve(at: Index, out: Operand, sizes: tuple[int, ...]) -> list[Index] | None:
    """The indices with which a statement over `sizes` wrote a place; None if it wrote none of the place's numbers.

    Raises Split if that depends on a variable.
    """
    indices = [Index()] * len(sizes)
    rest = Index(at.start - out.start, at.terms)
    for dim in sorted(range(len(sizes)), key=lambda one: -out.strides[one]):
        index, rest = _divide(rest, out.strides[dim])
        if not _is_within(index, sizes[dim]):
            return None
        indices[dim] = index
    return indices if _is_within(rest, 1) else None


def _divide(at: Index, stride: int) -> tuple[Index, Index]:
    """Quotient and remainder, which is from 0 to stride - 1. Raises Split if these are not affine."""
    start, within = divmod(at.start, stride)
    even = tuple((variable, by // stride) for variable, by in at.terms if by % stride == 0)
    rest = Index(within, tuple((variable, by) for variable, by in at.terms if by % stride))
    if rest.largest >= stride:
        variable, by = max(rest.terms, key=lambda term: term[1])
        raise _split(variable, by, stride, -(-(stride - within) // by))
    return Index(start, even), rest


def _split(variable: Variable, by: int, stride: int, first: int) -> Split:
    """first: the variable's first value in the next multiple of the stride."""
    period = stride // by
    if stride % by == 0 and variable.size % period == 0 and variable.size // period > MOST_RUNS:
        return Split(variable, [Piece(offset, period, variable.size // period) for offset in range(period)])
    return _cut(variable, min(first, variable.size - 1))


def _cut(variable: Variable, at: int) -> Split:
    return Split(variable, [Piece(0, 1, at), Piece(at, 1, variable.size - at)])


def _is_within(index: Index, size: int) -> bool:
    """Whether all values are from 0 to size - 1; False if none is. Raises Split if some are."""
    for bound in (0, size):
        if index.start < bound <= index.largest:
            variable, by = max(index.terms, key=lambda term: term[1])
            first = -(-(bound - index.start) // by)
            raise _cut(variable, min(max(first, 1), variable.size - 1))
    return 0 <= index.start < size
