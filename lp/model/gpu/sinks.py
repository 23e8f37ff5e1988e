"""What a stage writes to memory, and how its kernel's programs share that work.

R rows, H key/value heads, D head dimension
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import prod

from lp.model.gpu.index import Index, Piece, Split, Variable, place
from lp.model.gpu.terms import INNER, InnerTotal, Term, Terms, totals, variables, written_as
from lp.model.program.steps import Keep, Operand, Statement, Value, written

# Numbers that one program computes where it is free to take a part of a row.
CHUNK, HEADS_CHUNK = 1024, 512


@dataclass(frozen=True)
class Store:
    """A layer's keys or values in the KV cache."""

    layer: int
    is_key: bool


@dataclass(frozen=True)
class Sink:
    """Numbers that are written: a term for each value of the variables, at a place in a row's array.

    A Store's array for a row is [H, D].
    """

    target: Value | Store
    at: Index
    term: Term
    domain: tuple[Variable, ...]
    # Numbers of a row's array of the target.
    width: int


@dataclass(frozen=True)
class Part:
    """Sinks over the same variables, which the same programs compute.

    outer: all variables but the last, of which each program takes `num_outer` values. inner: the last one; a program
    takes all of it, or `chunk` values if that is not 0. num_programs: for each row.
    """

    sinks: tuple[Sink, ...]
    outer: tuple[Variable, ...]
    inner: Variable
    num_outer: int
    chunk: int
    num_programs: int

    @property
    def block(self) -> int:
        """The numbers that a program holds of one term, at most."""
        own = self.num_outer * (self.chunk or power_of_two(self.inner.size))
        return max([own, *(self.num_outer * power_of_two(size) for size in _total_sizes(self.sinks))])


def power_of_two(size: int) -> int:
    """The next power of two."""
    return 1 << (size - 1).bit_length()


def find_sinks(statements: list[Statement], shared: set[int]) -> list[Sink]:
    """shared: the values that other stages use as well. Raises Inexpressible and NestedTotal."""
    terms, sinks = Terms(statements, shared), []
    for statement in statements:
        if isinstance(statement, Keep) or any(id(value) in shared for value in written(statement)):
            sinks += _sinks_of(statement, terms)
    return sinks


def _sinks_of(statement: Statement, terms: Terms) -> Iterator[Sink]:
    target, out, sizes, width = _target(statement)
    names = [*(f"o{dim}" for dim in range(len(sizes) - 1)), INNER]
    waiting = [[Piece(0, 1, size) for size in sizes]]
    while waiting:
        pieces = waiting.pop(0)
        indices = [piece.index(name) for piece, name in zip(pieces, names, strict=False)]
        try:
            if isinstance(statement, Keep):
                term = terms.read(_heads(statement), indices)
            else:
                term = terms.outcome(statement, indices)
        except Split as split:
            dim = names.index(split.variable.name)
            waiting = [[*pieces[:dim], _within(pieces[dim], one), *pieces[dim + 1 :]] for one in split.pieces] + waiting
            continue
        except InnerTotal:
            names[len(sizes) - 1] = f"o{len(sizes) - 1}"
            waiting.insert(0, pieces)
            continue
        domain = tuple(variable for index in indices for variable, _ in index.terms)
        yield Sink(target, place(out, indices), term, domain, width)


def _target(statement: Statement) -> tuple[Value | Store, Operand, tuple[int, ...], int]:
    """What is written, as an operand, over which sizes, and the width of a row's array."""
    if isinstance(statement, Keep):
        source, heads = statement.source.source, statement.num_heads
        out = Operand(source, 0, (statement.head_dim, 1))
        width = heads * statement.head_dim
        return Store(statement.layer, statement.is_key), out, (heads, statement.head_dim), width
    out, sizes = written_as(statement)
    assert isinstance(out.source, Value)
    return out.source, out, sizes, out.source.width


def _heads(statement: Keep) -> Operand:
    source = statement.source
    return Operand(source.source, source.start, (source.strides[0] if source.strides else 0, 1))


def _within(piece: Piece, part: Piece) -> Piece:
    return Piece(piece.offset + part.offset * piece.step, piece.step * part.step, part.size)


def make_parts(sinks: Iterable[Sink]) -> list[Part]:
    """Sinks over the same variables share a part, as they read much of the same."""
    groups: dict[tuple[Variable, ...], list[Sink]] = {}
    for sink in sinks:
        groups.setdefault(sink.domain, []).append(sink)
    return [_make_part(domain, tuple(group)) for domain, group in groups.items()]


def _make_part(domain: tuple[Variable, ...], sinks: tuple[Sink, ...]) -> Part:
    has_inner = bool(domain) and domain[-1].name == INNER
    inner = domain[-1] if has_inner else Variable(INNER, 1)
    outer = domain[:-1] if has_inner else domain
    if not outer and not any(totals(sink.term) for sink in sinks):
        chunk = min(CHUNK, power_of_two(inner.size))
        return Part(sinks, outer, inner, 1, chunk, -(-inner.size // chunk))
    count = prod(variable.size for variable in outer)
    widest = max([inner.size, *_total_sizes(sinks, with_outer=True)])
    num_outer = min(power_of_two(count), max(1, HEADS_CHUNK // power_of_two(widest)))
    return Part(sinks, outer, inner, num_outer, 0, -(-count // num_outer))


def _total_sizes(sinks: Iterable[Sink], with_outer: bool = False) -> list[int]:
    """The sizes over which totals run; if asked for, only of those that differ among a sink's outer variables."""
    found = [total for sink in sinks for total in totals(sink.term)]
    return [variable.size for total in found if not with_outer or variables(total) for _, variable in total.parts]
