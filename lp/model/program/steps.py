"""What a forward does, as steps over values. A value is an array of numbers for each row.

R rows, H key/value heads, G query heads for each of them, D head dimension
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields

from torch import Tensor

from lp.model.kernels import LayerAttention
from lp.model.program.group import RankGroup
from lp.model.quantization.joined import QuantizedExperts
from lp.model.quantization.weight import QuantizedWeight


@dataclass(eq=False)
class Value:
    """An array for each row. width: its length. is_integer: int64 instead of float32, as of tokens and positions.

    is_half: 16-bit numbers of the model's own format, as a product reads them.
    """

    width: int
    is_integer: bool = False
    is_half: bool = False


@dataclass(eq=False)
class Constant:
    """Numbers that are the same for every row and step. tensor: any shape; its numbers are taken in their order.

    is_table: rows of it are looked up; else it is read as float32.
    """

    tensor: Tensor
    is_table: bool = False


@dataclass(frozen=True)
class Operand:
    """How a statement reads or writes an array: from `start` on, with one stride for each of the statement's sizes."""

    source: Value | Constant
    start: int
    strides: tuple[int, ...]


@dataclass(frozen=True)
class Map:
    """Each number of an array, computed by itself. formula: C, with {0}, {1} ... for the inputs' numbers."""

    out: Operand
    sizes: tuple[int, ...]
    formula: str
    inputs: tuple[Operand, ...]


@dataclass(frozen=True)
class Reduce:
    """A sum or a maximum over the last of `sizes`.

    formula: C, as in Map, for the numbers that are summed. finish: C, with {} for the sum.
    """

    out: Operand
    sizes: tuple[int, ...]
    formula: str
    inputs: tuple[Operand, ...]
    finish: str = "{}"
    is_maximum: bool = False


@dataclass(frozen=True)
class Gather:
    """Copies the row of a table that an integer names."""

    out: Operand
    index: Operand
    table: Constant | QuantizedWeight


@dataclass(frozen=True)
class Round:
    """Rounds numbers to the model's 16-bit format, and pads them with zeros.

    count: pieces of `size` numbers, each of which is padded. source: its last stride is 1; if there are several pieces,
    the first one is that of pieces.
    """

    out: Value
    source: Operand
    size: int
    count: int = 1


@dataclass(frozen=True)
class Keep:
    """Writes a layer's keys or values of a row to the KV cache.

    source: its stride is that of heads. layer: its index in the model.
    """

    source: Operand
    layer: int
    is_key: bool
    num_heads: int
    head_dim: int


@dataclass(frozen=True)
class Product:
    """out[n] = bias[n] + sum over k of x[k] * weight[k, n]. weight: [K, N]."""

    out: Value
    x: Operand
    weight: Tensor | QuantizedWeight
    bias: Constant | None


@dataclass(frozen=True)
class Lookup:
    """Copies the row of a quantised table that an integer names, by a kernel of its own, as GPUs do.

    out: in the model's own format.
    """

    out: Value
    index: Operand
    table: QuantizedWeight


@dataclass(frozen=True)
class TopK:
    """Finds the `count` largest of `size` numbers that lie side by side, the largest first, and their places.

    num_pieces: pieces of `size` numbers, one behind the other, in each of which the largest are found.
    """

    values: Value
    places: Value
    x: Operand
    size: int
    count: int
    num_pieces: int = 1


@dataclass(frozen=True)
class ExpertProduct:
    """out[c, n] = bias[e, n] + sum over k of x[c, k] * weight[e, k, n], with e = experts[c], for each of the C experts
    that a row is sent to.

    x: its strides are those of choices, 0 if all experts read the same, and 1. experts: integers, side by side. weight:
    [experts, K, N]. bias: [experts, N]. shape: experts, K, N.
    """

    out: Value
    x: Operand
    experts: Operand
    weight: Tensor | QuantizedExperts
    bias: Constant | None
    num_choices: int

    @property
    def shape(self) -> tuple[int, int, int]:
        if isinstance(self.weight, QuantizedExperts):
            first = self.weight.experts[0]
            return len(self.weight.experts), first.num_inputs, first.num_outputs
        num_experts, num_inputs, num_outputs = self.weight.shape
        return num_experts, num_inputs, num_outputs


@dataclass(frozen=True)
class Attention:
    """A layer's attention over the KV cache. The query's stride is that of heads, whose numbers lie side by side.

    layer: the index of the one whose keys and values are read. head_dim, value_dim: numbers of a key and of a value.
    sinks: one number for each query head, see LayerAttention; `how` has none. values_in_keys: whether a value is the
    first numbers of its key, so that the layer has no others.
    """

    out: Value
    query: Operand
    layer: int
    how: LayerAttention
    num_heads: int
    num_groups: int
    head_dim: int
    value_dim: int
    sinks: Constant | None = None
    values_in_keys: bool = False

    @property
    def head_stride(self) -> int:
        """Numbers from a query head to the next one."""
        return self.query.strides[0] if self.query.strides else 0


@dataclass(frozen=True)
class Convolution:
    """A causal convolution of each number by itself along a row's path. Its last inputs are a part of a layer's state.

    x: numbers side by side. taps: [K, N], the one for the row itself is the last. bias: [N].
    """

    out: Value
    x: Operand
    layer: int
    taps: Constant
    bias: Constant | None

    @property
    def shape(self) -> tuple[int, int]:
        """K, N."""
        num_taps, size = self.taps.tensor.shape
        return num_taps, size


@dataclass(frozen=True)
class Recurrence:
    """Advances each row's matrix along its path, and reads it: see StateRows in lp/model/recurrent/base.py. The matrix
    [num_heads, key_dim, value_dim] is a part of a layer's state.

    queries, keys, values: their strides are those of heads and 1. logs, rates: one number for each head of values; logs
    may be a constant.
    """

    out: Value
    queries: Operand
    keys: Operand
    values: Operand
    logs: Operand
    rates: Operand | None
    layer: int
    num_heads: int
    num_key_heads: int
    key_dim: int
    value_dim: int


@dataclass(frozen=True)
class Scan:
    """Advances each row's matrix along its path and reads it, where each number has a decay of its own: see StateRows.
    The matrix [D, E] is a part of a layer's state.

    queries, keys, values, times: numbers side by side. rates: [D, E].
    """

    out: Value
    queries: Operand
    keys: Operand
    values: Operand
    times: Operand
    rates: Constant
    layer: int

    @property
    def shape(self) -> tuple[int, int]:
        """D, E."""
        key_dim, value_dim = self.rates.tensor.shape
        return key_dim, value_dim


@dataclass(frozen=True)
class AllReduce:
    """out = the sum of x over the ranks of a group, in their order. x: numbers side by side, as many as out has."""

    out: Value
    x: Operand
    group: RankGroup


@dataclass(frozen=True)
class AllGather:
    """out = the x of all ranks of a group, side by side in their order. sizes: of each rank's x."""

    out: Value
    x: Operand
    sizes: tuple[int, ...]
    group: RankGroup


def plain_table(step: Gather) -> Constant:
    """The table of a step whose table is not quantised."""
    assert isinstance(step.table, Constant), "a GPU looks up rows of quantised tables by a step of its own"
    return step.table


# Names a weight [K, N]: its memory, and where it lies in it. Of a quantised weight: itself.
WeightKey = tuple[int, int, tuple[int, ...], tuple[int, ...]]


def weight_key(weight: Tensor | QuantizedWeight) -> WeightKey:
    """The name of the weight [K, N] of a product."""
    if isinstance(weight, QuantizedWeight):
        return id(weight), 0, weight.shape, ()
    return weight.untyped_storage()._cdata, int(weight.storage_offset()), tuple(weight.shape), weight.stride()


def table_key(table: Tensor | QuantizedWeight) -> WeightKey:
    """The name of the weight that is a table [N, K] of embeddings as well, as in models that tie the two."""
    return weight_key(table if isinstance(table, QuantizedWeight) else table.t())


# What treats every row by itself.
Statement = Map | Reduce | Gather | Round | Keep
# What waits for the other ranks.
Collective = AllReduce | AllGather
# What advances a part of a recurrent layer's state.
StatePart = Convolution | Recurrence | Scan
# What all threads of a device do together.
Shared = Product | Lookup | Attention | StatePart | Collective | TopK | ExpertProduct
Step = Statement | Shared


@dataclass(frozen=True)
class Span:
    """Numbers of a value that lie side by side: `size` of them from `start` on."""

    value: Value
    start: int
    size: int


@dataclass
class Program:
    """tokens, positions: the inputs. incoming: hidden states that come in, in a stage of a pipeline but for the first.
    output: logits, of as many numbers as the vocabulary has, or the hidden states that a stage hands on. hidden: what
    the output embedding reads, if its values stay until the end; see `keep_hidden`.
    """

    tokens: Value
    positions: Value
    output: Value
    steps: list[Step] = field(default_factory=list)
    hidden: Span | None = None
    incoming: Value | None = None
    gives_logits: bool = True

    @property
    def cached_layers(self) -> list[int]:
        """The layers that have keys and values of their own."""
        return sorted({step.layer for step in self.steps if isinstance(step, Keep)})

    @property
    def state_parts(self) -> list[StatePart]:
        """What the states of all recurrent layers consist of. A layer's parts are in the order of its state's."""
        return [step for step in self.steps if isinstance(step, StatePart)]

    @property
    def inputs(self) -> list[Value]:
        return [self.tokens, self.positions, *([] if self.incoming is None else [self.incoming])]

    @property
    def group(self) -> RankGroup | None:
        """The ranks that share the model; None if this rank has all of it."""
        return next((step.group for step in self.steps if isinstance(step, Collective)), None)

    def keep_hidden(self, output: WeightKey) -> None:
        """Has the last hidden states kept, if a product with the output embedding [K, N] of this name reads them."""
        for step in self.steps:
            if isinstance(step, Product) and weight_key(step.weight) == output and isinstance(step.x.source, Value):
                self.hidden = Span(step.x.source, step.x.start, step.weight.shape[0])


def reads(step: Step) -> list[Operand]:
    """What a step reads."""
    match step:
        case Map() | Reduce():
            return list(step.inputs)
        case Gather() | Lookup():
            return [step.index]
        case Round() | Keep():
            return [step.source]
        case Product() | Convolution() | AllReduce() | AllGather() | TopK():
            return [step.x]
        case Recurrence():
            rates = [] if step.rates is None else [step.rates]
            return [step.queries, step.keys, step.values, step.logs, *rates]
        case Scan():
            return [step.queries, step.keys, step.values, step.times]
        case ExpertProduct():
            return [step.x, step.experts]
        case Attention():
            return [step.query]


def written(step: Step) -> list[Value]:
    """The values that a step writes, or parts of which it writes; none if it writes to the KV cache."""
    match step:
        case Keep():
            return []
        case TopK():
            return [step.values, step.places]
    out = step.out.source if isinstance(step.out, Operand) else step.out
    assert isinstance(out, Value)
    return [out]


def outline(program: Program) -> list[str]:
    """What a program does, without its numbers: two programs with the same outline do the same."""
    names: dict[int, str] = {}

    def describe(part: object) -> str:
        match part:
            case Value():
                return names.setdefault(id(part), f"v{len(names)}") + f"[{part.width}]"
            case Constant():
                return names.setdefault(id(part), f"c{len(names)}") + f"{list(part.tensor.shape)}"
            case Tensor() | QuantizedWeight():
                return f"weight{list(part.shape)}"
            case Operand():
                return f"{describe(part.source)}+{part.start}{part.strides}"
            case tuple():
                return f"({', '.join(describe(one) for one in part)})"
        return repr(part)

    describe(tuple(program.inputs))
    lines = [
        f"{type(step).__name__} " + " ".join(describe(getattr(step, one.name)) for one in fields(step))
        for step in program.steps
    ]
    return [*lines, describe(program.output)]
