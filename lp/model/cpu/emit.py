"""Writes the statements of a stage as a C++ function of rows.

Values that only this stage uses are arrays of the function; all others are arguments. Stages with the same text share
one function, so a model's layers do. A number that is read once is computed where it is read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from lp.model.cpu.quantized import kernel_format
from lp.model.program.steps import (
    Constant,
    Gather,
    Keep,
    Map,
    Operand,
    Reduce,
    Round,
    Statement,
    Value,
    WeightKey,
    reads,
    table_key,
    written,
)
from lp.model.quantization.weight import GROUP, QuantizedWeight, WeightFormat

INDENT = "    "


@dataclass(frozen=True)
class Layer:
    """An argument that is the place of a layer among those that have keys and values of their own."""

    number: int


Argument = Value | Constant | Layer | QuantizedWeight


@dataclass
class Function:
    """The text of a stage's function, but for its name, and its arguments in order."""

    body: str
    arguments: list[Argument]


@dataclass
class _Loop:
    """A formula with its inputs over the sizes of a statement."""

    formula: str
    inputs: list[Operand]


class StageWriter:
    """Writes one function.

    shared: the values that other stages use as well. packed: keys of the weights that are packed for products. formats:
    the names of the structs of quantised weights' formats. layers: those that have keys and values of their own.
    """

    def __init__(
        self,
        statements: list[Statement],
        shared: set[int],
        packed: set[WeightKey],
        formats: Mapping[WeightFormat, str],
        layers: list[int],
    ):
        self._statements = statements
        self._shared = shared
        self._packed = packed
        self._formats = formats
        self._layers = layers
        self._arguments: list[Argument] = []
        self._names: dict[int, str] = {}
        self._uses = Counter(id(one.source) for statement in statements for one in reads(statement))
        self._written = Counter(id(value) for statement in statements for value in written(statement))
        self._inlined: dict[int, Map] = {}
        self._lines: list[str] = []

    def write(self) -> Function:
        for statement in self._statements:
            match statement:
                case Map() if self._is_inlined(statement):
                    self._inlined[id(statement.out.source)] = statement
                case Map():
                    self._map(statement)
                case Reduce():
                    self._reduce(statement)
                case Gather():
                    self._gather(statement)
                case Round():
                    self._round(statement)
                case Keep():
                    self._keep(statement)
        head = [self._argument(number, one) for number, one in enumerate(self._arguments)]
        return Function("\n".join(INDENT * 2 + line for line in [*head, *self._lines]), self._arguments)

    # Names

    def _argument(self, number: int, argument: Argument) -> str:
        match argument:
            case Layer():
                return f"const long x{number} = a[{number}];"
            case QuantizedWeight():
                return f"const uint8_t* x{number} = (const uint8_t*)a[{number}];"
            case Constant(is_table=True):
                return f"const weight_t* x{number} = (const weight_t*)a[{number}];"
            case Constant():
                return f"const float* __restrict__ x{number} = (const float*)a[{number}];"
        kind = "long" if argument.is_integer else "half_t" if argument.is_half else "float"
        return f"{kind}* __restrict__ x{number} = ({kind}*)a[{number}] + r * {argument.width};"

    def _name(self, source: Argument) -> str:
        key = id(source)
        if key not in self._names:
            is_local = isinstance(source, Value) and key not in self._shared
            if is_local:
                assert isinstance(source, Value)
                self._names[key] = f"v{len(self._names)}"
                kind = "long" if source.is_integer else "float"
                self._lines.append(f"alignas(64) {kind} {self._names[key]}[{source.width}];")
            else:
                self._names[key] = f"x{len(self._arguments)}"
                self._arguments.append(source)
        return self._names[key]

    # Statements

    def _is_inlined(self, statement: Map) -> bool:
        """Whether the outcome is read once, in this stage, number by number in its own order."""
        source, sizes = statement.out.source, statement.sizes
        if id(source) in self._shared or self._uses[id(source)] != 1 or self._written[id(source)] != 1:
            return False
        assert isinstance(source, Value)
        if prod(sizes) != source.width or source.is_integer:
            return False
        (reader,) = [one for one in self._statements if any(read.source is source for read in reads(one))]
        if not isinstance(reader, Map | Reduce | Round):
            return False
        if (_sizes_rounded(reader) if isinstance(reader, Round) else reader.sizes) != sizes:
            return False
        (read,) = [one for one in reads(reader) if one.source is source]
        return read.start == 0 and read.strides == statement.out.strides

    def _expand(self, formula: str, inputs: tuple[Operand, ...]) -> _Loop:
        """The formula with the formulas of inlined inputs in their places."""
        parts: list[str] = []
        operands: list[Operand] = []
        for one in inputs:
            inner = self._inlined.get(id(one.source))
            if inner is None:
                parts.append(f"{{{len(operands)}}}")
                operands.append(one)
            else:
                loop = self._expand(inner.formula, inner.inputs)
                shifted = [f"{{{len(operands) + number}}}" for number in range(len(loop.inputs))]
                parts.append(f"({loop.formula.format(*shifted)})")
                operands.extend(loop.inputs)
        return _Loop(formula.format(*parts), operands)

    def _map(self, statement: Map) -> None:
        loop = self._expand(statement.formula, statement.inputs)
        out = statement.out
        sizes, (to, *inputs) = merged(statement.sizes, [out, *loop.inputs])
        for one in (*inputs, to):
            self._name(one.source)
        self._open(sizes, len(sizes))
        value = loop.formula.format(*(self._at(one) for one in inputs))
        self._lines.append(INDENT * len(sizes) + f"{self._at(to)} = {value};")
        self._close(len(sizes))

    def _reduce(self, statement: Reduce) -> None:
        loop = self._expand(statement.formula, statement.inputs)
        outer = statement.sizes[:-1]
        depth = len(outer)
        for one in (*loop.inputs, statement.out):
            self._name(one.source)
        self._open(outer, 0)
        pad = INDENT * depth
        start, operator, body = (
            ("-INFINITY", "max", "sum = larger(sum, {});") if statement.is_maximum else ("0.0f", "+", "sum += {};")
        )
        value = loop.formula.format(*(self._at(one) for one in loop.inputs))
        self._lines += [
            f"{pad}float sum = {start};" if depth else f"{{ float sum = {start};",
            f'{pad}_Pragma("omp simd reduction({operator}:sum)")',
            f"{pad}for (long i{depth} = 0; i{depth} < {statement.sizes[-1]}; i{depth}++) {body.format(value)}",
            f"{pad}{self._at(statement.out)} = {statement.finish.format('sum')};",
        ]
        self._lines += [] if depth else ["}"]
        self._close(depth)

    def _gather(self, statement: Gather) -> None:
        table, index = self._name(statement.table), self._at(statement.index)
        if isinstance(statement.table, QuantizedWeight):
            size, count = statement.table.shape
            format = self._formats[kernel_format(statement.table.format)]
            arguments = f"{table}, {count}, {size}, {statement.table.span // GROUP}, {index}"
            self._lines.append(f"look_up<{format}>({arguments}, {self._name(statement.out.source)});")
            return
        size = statement.table.tensor.shape[1]
        out = self._name(statement.out.source)
        is_packed = table_key(statement.table.tensor) in self._packed
        at = f"packed_at({index}, i0, {size})" if is_packed else f"{index} * {size} + i0"
        self._lines.append(f"for (long i0 = 0; i0 < {size}; i0++) {out}[i0] = number({table}[{at}]);")

    def _round(self, statement: Round) -> None:
        loop = self._expand("{0}", (statement.source,))
        for one in loop.inputs:
            self._name(one.source)
        out, value = self._name(statement.out), loop.formula.format(*(self._at(one) for one in loop.inputs))
        sizes, width = _sizes_rounded(statement), statement.out.width // statement.count
        last, at = f"i{len(sizes) - 1}", "i0" if len(sizes) == 1 else f"i0 * {width} + i1"
        pad = INDENT * (len(sizes) - 1)
        self._open(sizes[:-1], 0)
        head = f"for (long {last} = 0; {last} < {statement.size}; {last}++)"
        self._lines.append(f"{pad}{head} {out}[{at}] = rounded({value});")
        if statement.size < width:
            head = f"for (long {last} = {statement.size}; {last} < {width}; {last}++)"
            self._lines.append(f"{pad}{head} {out}[{at}] = half_t();")
        self._close(len(sizes) - 1)

    def _keep(self, statement: Keep) -> None:
        layer, source = Layer(self._layers.index(statement.layer)), statement.source
        name, stride = self._name(source.source), source.strides[0] if source.strides else 0
        number = next((n for n, one in enumerate(self._arguments) if one == layer), len(self._arguments))
        if number == len(self._arguments):
            self._arguments.append(layer)
        is_key = "true" if statement.is_key else "false"
        self._lines.append(
            f"keep({is_key}, x{number}, step, r, {name} + {source.start}, {stride}, {statement.num_heads}, "
            f"{statement.head_dim});"
        )

    # Loops

    def _open(self, sizes: tuple[int, ...], num_hinted: int) -> None:
        for depth, size in enumerate(sizes):
            if depth == num_hinted - 1:
                self._lines.append(INDENT * depth + '_Pragma("GCC ivdep")')
            self._lines.append(INDENT * depth + f"for (long i{depth} = 0; i{depth} < {size}; i{depth}++) {{")

    def _close(self, depth: int) -> None:
        self._lines += [INDENT * level + "}" for level in reversed(range(depth))]

    def _at(self, operand: Operand) -> str:
        """The number of an operand that belongs to the loops' variables."""
        terms = [
            f"i{depth} * {stride}" if stride != 1 else f"i{depth}"
            for depth, stride in enumerate(operand.strides)
            if stride
        ]
        terms += [str(operand.start)] if operand.start or not terms else []
        return f"{self._name(operand.source)}[{' + '.join(terms)}]"


def _sizes_rounded(statement: Round) -> tuple[int, ...]:
    return (statement.count, statement.size) if statement.count > 1 else (statement.size,)


def merged(sizes: tuple[int, ...], operands: list[Operand]) -> tuple[tuple[int, ...], list[Operand]]:
    """The same loops with as few dimensions as possible."""
    dims = [[size, [one.strides[dim] for one in operands]] for dim, size in enumerate(sizes)]
    out: list[list] = []
    for size, strides in dims:
        if out and all(before == stride * size for before, stride in zip(out[-1][1], strides, strict=True)):
            out[-1] = [out[-1][0] * size, strides]
        else:
            out.append([size, strides])
    return (
        tuple(size for size, _ in out),
        [Operand(one.source, one.start, tuple(strides[n] for _, strides in out)) for n, one in enumerate(operands)],
    )
