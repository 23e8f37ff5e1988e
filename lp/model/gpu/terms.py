"""What a number of a stage is computed from: loads, formulas and sums, without any array between them.

A stage's statements write arrays, and read parts of them in another order. Here a number that a statement reads is
replaced by the formula of the statement that wrote it, so that a kernel needs no memory for what only its stage uses.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from lp.model.gpu.index import Index, Piece, Split, Variable, place, solve
from lp.model.program.record import Inexpressible
from lp.model.program.steps import Constant, Gather, Map, Operand, Reduce, Round, Statement, Value, plain_table, written


@dataclass(frozen=True)
class Load:
    """A number of an array in memory."""

    source: Value | Constant
    at: Index


@dataclass(frozen=True)
class Lookup:
    """A number in the row of a table that an integer names."""

    table: Constant
    row: Term
    column: Index


@dataclass(frozen=True)
class Formula:
    """text: C, with {0}, {1} ... for the arguments."""

    text: str
    arguments: tuple[Term, ...]
    is_integer: bool = False


@dataclass(frozen=True)
class Total:
    """A sum or a maximum of terms, each over a variable."""

    parts: tuple[tuple[Term, Variable], ...]
    is_maximum: bool


Term = Load | Lookup | Formula | Total

# The name of the variable over which a total runs, and of a statement's last dimension: terms that both need are equal.
INNER = "i"


class InnerTotal(Exception):
    """A total is different for every value of a variable called INNER, as the one that it runs over."""


class NestedTotal(Exception):
    """What a statement adds up depends on a total that is different for each of its terms."""

    def __init__(self, statement: Reduce):
        super().__init__("a sum of sums")
        self.statement = statement


class Terms:
    """Finds the terms of a stage's numbers. shared: the values that are in memory."""

    def __init__(self, statements: Iterable[Statement], shared: set[int]):
        self._shared = shared
        self._writers: dict[int, list[Statement]] = defaultdict(list)
        for statement in statements:
            for value in written(statement):
                self._writers[id(value)].append(statement)

    def outcome(self, statement: Statement, indices: list[Index]) -> Term:
        """The number that a statement writes for the indices of its dimensions.

        Raises Split, InnerTotal and NestedTotal.
        """
        match statement:
            case Map():
                out = statement.out.source
                assert isinstance(out, Value)
                return Formula(statement.formula, self._inputs(statement.inputs, indices), out.is_integer)
            case Reduce():
                return Formula(statement.finish.replace("{}", "{0}"), (self._total(statement, indices),))
            case Gather():
                row = self._at(statement.index.source, Index(statement.index.start))
                return Lookup(plain_table(statement), row, indices[0])
            case Round():
                return self._at(statement.source.source, place(statement.source, indices))
        raise AssertionError(statement)

    def read(self, operand: Operand, indices: list[Index]) -> Term:
        """The number that an operand reads. Raises Split, InnerTotal and NestedTotal."""
        return self._at(operand.source, place(operand, indices))

    def _inputs(self, operands: tuple[Operand, ...], indices: list[Index]) -> tuple[Term, ...]:
        return tuple(self.read(one, indices) for one in operands)

    def _at(self, source: Value | Constant, at: Index) -> Term:
        for statement in self._writers[id(source)]:
            out, sizes = written_as(statement)
            indices = solve(at, out, sizes)
            if indices is not None:
                return self.outcome(statement, indices)
        if isinstance(source, Value) and id(source) not in self._shared:
            raise Inexpressible("a number that is read and was never written")
        return Load(source, at)

    def _total(self, statement: Reduce, outer: list[Index]) -> Total:
        if any(used.name == INNER for one in outer for used, _ in one.terms):
            raise InnerTotal
        parts = []
        waiting = [Piece(0, 1, statement.sizes[-1])]
        while waiting:
            piece = waiting.pop(0)
            variable = Variable(INNER, piece.size)
            index = Index(piece.offset, ((variable, piece.step),))
            try:
                inputs = self._inputs(statement.inputs, [*outer, index])
            except Split as split:
                if split.variable != variable:
                    raise
                waiting = [
                    Piece(piece.offset + one.offset * piece.step, piece.step * one.step, one.size)
                    for one in split.pieces
                ] + waiting
                continue
            except InnerTotal:
                raise NestedTotal(statement) from None
            parts.append((Formula(statement.formula, inputs), variable))
        return Total(tuple(parts), statement.is_maximum)


def written_as(statement: Statement) -> tuple[Operand, tuple[int, ...]]:
    """What a statement writes, and the sizes of the dimensions over which it does."""
    match statement:
        case Map():
            return statement.out, statement.sizes
        case Reduce():
            return Operand(statement.out.source, statement.out.start, statement.out.strides[:-1]), statement.sizes[:-1]
        case Gather():
            return Operand(statement.out.source, statement.out.start, (1,)), (plain_table(statement).tensor.shape[1],)
        case Round(count=1):
            return Operand(statement.out, 0, (1,)), (statement.size,)
        case Round():
            return Operand(statement.out, 0, (statement.size, 1)), (statement.count, statement.size)
    raise AssertionError(statement)


def variables(term: Term | Index) -> set[Variable]:
    """The variables that a term depends on; those of its totals are not among them."""
    match term:
        case Index():
            return {variable for variable, _ in term.terms}
        case Load():
            return variables(term.at)
        case Lookup():
            return variables(term.row) | variables(term.column)
        case Formula():
            return set().union(*(variables(one) for one in term.arguments))
        case Total():
            return set().union(*(variables(part) - {variable} for part, variable in term.parts))


def totals(term: Term) -> list[Total]:
    """All totals in a term."""
    match term:
        case Load():
            return []
        case Lookup():
            return totals(term.row)
        case Formula():
            return [total for one in term.arguments for total in totals(one)]
        case Total():
            return [term, *(total for part, _ in term.parts for total in totals(part))]
