"""Writes a stage as one Triton kernel: each row by itself, and the parts of a row by different programs.

Stages with the same text share one kernel, so a model's layers do.

R rows, H key/value heads, D head dimension
"""

from __future__ import annotations

from dataclasses import dataclass

from lp.model.gpu.formula import in_triton
from lp.model.gpu.index import Index, Variable
from lp.model.gpu.sinks import Part, Sink, Store, find_sinks, make_parts, power_of_two
from lp.model.gpu.terms import Formula, Load, Lookup, Term, Total, variables
from lp.model.program.steps import Constant, Statement, Value

INDENT = "    "
# The numbers of a term that a warp of 32 threads holds, and the most warps of a program.
NUMBERS_OF_A_WARP, MOST_WARPS = 256, 16


@dataclass(frozen=True)
class Slots:
    """The places of the rows' keys and values in the KV cache: int64 [R], in units of [H, D]."""


Argument = Value | Constant | Store | Slots


@dataclass(frozen=True)
class StageKernel:
    """A kernel's text, its arguments in order, programs for each row, and warps of a program."""

    text: str
    arguments: tuple[Argument, ...]
    num_programs: int
    num_warps: int


def write_stage(statements: list[Statement], shared: set[int]) -> StageKernel | None:
    """None if the stage writes nothing. shared: the values that other stages use as well.

    Raises Inexpressible and NestedTotal.
    """
    parts = make_parts(find_sinks(statements, shared))
    if not parts:
        return None
    arguments = _Arguments()
    body, first = [], 0
    for number, part in enumerate(parts):
        lines = _PartWriter(part, arguments, number, first).write()
        last = first + part.num_programs
        if len(parts) > 1:
            head = "else:" if number == len(parts) - 1 else f"{'el' if number else ''}if program < {last}:"
            lines = [head, *(INDENT + line for line in lines)]
        body += lines
        first = last
    head = ["row = tl.program_id(0)", "program = tl.program_id(1)", *arguments.rows()]
    names = ", ".join(f"x{number}" for number in range(len(arguments.all)))
    text = "\n".join([f"def stage({names}):", *(INDENT + line for line in [*head, *body])]) + "\n"
    warps = min(max(power_of_two(max(part.block for part in parts) // NUMBERS_OF_A_WARP or 1), 1), MOST_WARPS)
    return StageKernel(text, tuple(arguments.all), first, warps)


class _Arguments:
    """The kernel's arguments, and the names of a row's arrays."""

    def __init__(self) -> None:
        self.all: list[Argument] = []
        self._row_lines: list[str] = []
        self._names: dict[object, str] = {}

    def rows(self) -> list[str]:
        return self._row_lines

    def pointer(self, source: Value | Constant | Store, width: int = 0) -> str:
        """The name of the first number of a row's array, or of a constant's. width: of a Store's array."""
        if source not in self._names:
            match source:
                case Constant():
                    self._names[source] = self._add(source)
                case Value():
                    self._names[source] = self._row(self._add(source), f"row * {source.width}")
                case Store():
                    if Slots() not in self._names:
                        self._names[Slots()] = self._add(Slots())
                        self._row_lines.append(f"slot = tl.load({self._names[Slots()]} + row)")
                    self._names[source] = self._row(self._add(source), f"slot * {width}")
        return self._names[source]

    def _add(self, argument: Argument) -> str:
        self.all.append(argument)
        return f"x{len(self.all) - 1}"

    def _row(self, name: str, offset: str) -> str:
        self._row_lines.append(f"{name}r = {name} + {offset}")
        return f"{name}r"


class _PartWriter:
    """Writes one part. number: of the part; names are made with it. first: the part's first program."""

    def __init__(self, part: Part, arguments: _Arguments, number: int, first: int):
        self._part = part
        self._arguments = arguments
        self._prefix = f"v{number}_"
        self._first = first
        self._lines: list[str] = []
        self._terms: dict[Term, str] = {}
        self._variables: dict[Variable, tuple[str, str | None]] = {}

    def write(self) -> list[str]:
        self._open()
        for sink in self._part.sinks:
            self._store(sink)
        return self._lines

    def _open(self) -> None:
        """Names the part's own variables."""
        part, prefix = self._part, self._prefix
        at = f"(program - {self._first})" if self._first else "program"
        if part.chunk:
            self._add(f"{prefix}c = {at} * {part.chunk} + tl.arange(0, {part.chunk})[None, :]")
            is_whole = part.inner.size % part.chunk == 0
            self._variables[part.inner] = f"{prefix}c", None if is_whole else f"({prefix}c < {part.inner.size})"
        if not part.outer:
            return
        self._add(f"{prefix}o = {at} * {part.num_outer} + tl.arange(0, {part.num_outer})[:, None]")
        below = 1
        for variable in reversed(part.outer):
            name = f"{prefix}{variable.name}"
            self._add(f"{name} = {prefix}o // {below} % {variable.size}")
            self._variables[variable] = name, None
            below *= variable.size
        if below % part.num_outer:  # every outer variable is masked where the program has more than there are
            for variable in part.outer:
                self._variables[variable] = self._variables[variable][0], f"({prefix}o < {below})"

    def _store(self, sink: Sink) -> None:
        value = self._term(sink.term)
        pointer = self._arguments.pointer(sink.target, sink.width)
        at = self._index(sink.at)
        if not sink.domain:
            at += f" + {self._variable(Variable('i', 1))[0]}"
        mask = self._mask(set(sink.domain))
        self._add(f"tl.store({pointer} + {at}, {value}{f', mask={mask}' if mask else ''})")

    # Terms

    def _term(self, term: Term) -> str:
        """The name of a term's numbers, which are computed if they have not been."""
        if term not in self._terms:
            match term:
                case Formula(text="{0}") if _is_integer(term.arguments[0]) == term.is_integer:
                    self._terms[term] = self._term(term.arguments[0])
                    return self._terms[term]
                case Load():
                    code = self._load(self._arguments.pointer(term.source), self._index(term.at), variables(term))
                    if not _is_integer(term):
                        code += ".to(tl.float32)"
                case Lookup():
                    row = self._term(term.row)
                    at = f"{row}.to(tl.int64) * {term.table.tensor.shape[1]} + {self._index(term.column)}"
                    code = self._load(self._arguments.pointer(term.table), at, variables(term)) + ".to(tl.float32)"
                case Formula():
                    code = self._formula(term)
                case Total():
                    code = self._total(term)
            name = f"{self._prefix}{len(self._terms)}"
            self._add(f"{name} = {code}")
            self._terms[term] = name
        return self._terms[term]

    def _load(self, pointer: str, at: str, used: set[Variable]) -> str:
        mask = self._mask(used)
        return f"tl.load({pointer} + {at}{f', mask={mask}, other=0' if mask else ''})"

    def _formula(self, term: Formula) -> str:
        names = [
            f"{self._term(one)}.to(tl.float32)" if _is_integer(one) and not term.is_integer else self._term(one)
            for one in term.arguments
        ]
        return in_triton(term.text).format(*names)

    def _total(self, term: Total) -> str:
        reduce, neutral = ("tl.max", 'float("-inf")') if term.is_maximum else ("tl.sum", "0.0")
        codes = []
        for body, variable in term.parts:
            name, mask = self._term(body), self._variable(variable)[1]
            if variable not in variables(body):
                codes.append(name if term.is_maximum else f"{name} * {variable.size}.0")
                continue
            masked = f"tl.where({mask}, {name}, {neutral})" if mask else name
            codes.append(f"{reduce}({masked}, axis=1, keep_dims=True)")
        joined = codes[0]
        for code in codes[1:]:
            joined = f"tl.maximum({joined}, {code})" if term.is_maximum else f"{joined} + {code}"
        return joined

    # Variables

    def _variable(self, variable: Variable) -> tuple[str, str | None]:
        """The name of a variable and its mask."""
        if variable not in self._variables:
            name, block = f"{self._prefix}i{variable.size}", power_of_two(variable.size)
            self._add(f"{name} = tl.arange(0, {block})[None, :]")
            self._variables[variable] = name, None if block == variable.size else f"({name} < {variable.size})"
        return self._variables[variable]

    def _index(self, index: Index) -> str:
        terms = [
            self._variable(variable)[0] + (f" * {stride}" if stride != 1 else "") for variable, stride in index.terms
        ]
        terms += [str(index.start)] if index.start or not terms else []
        return " + ".join(terms)

    def _mask(self, used: set[Variable]) -> str:
        masks = {mask for variable in used if (mask := self._variable(variable)[1])}
        return " & ".join(sorted(masks))

    def _add(self, line: str) -> None:
        self._lines.append(line)


def _is_integer(term: Term) -> bool:
    match term:
        case Load(source=Value() as source):
            return source.is_integer
        case Formula():
            return term.is_integer
    return False
