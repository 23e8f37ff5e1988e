"""Turns recorded operations into a program over rows.

Only what the logits depend on is turned. An operation on constants alone has been computed by the recording.

    R rows of the recording
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from lp.model.program.formulas import MAPS, SAME, literal, power
from lp.model.program.operands import Operands, squeezed
from lp.model.program.record import BLANK, Inexpressible, Operation, Recording, copies, fills, is_in_place, memory
from lp.model.program.steps import (
    AllGather,
    AllReduce,
    Attention,
    Constant,
    Convolution,
    ExpertProduct,
    Gather,
    Keep,
    Map,
    Operand,
    Product,
    Program,
    Recurrence,
    Reduce,
    Scan,
    TopK,
    Value,
)
from lp.model.quantization.weight import QuantizedWeight

# Instead of minus infinity, which no formula may have.
LOWEST = -3e38


class Lowering:
    """Makes the program of a recording, operation by operation."""

    def __init__(self, recording: Recording):
        self._recording = recording
        self._known = Operands(len(recording.tokens))
        tokens = self._known.fresh(recording.tokens, 0)
        positions = self._known.fresh(recording.positions, 0)
        self.program = Program(tokens, positions, tokens, gives_logits=recording.gives_logits)
        if recording.incoming is not None:
            self.program.incoming = self._known.fresh(recording.incoming, 1)
        # By its memory: what BLANK operations have made, with the numbers of it that have been written since.
        self._blank: dict[int, tuple[Operation, Tensor]] = {}
        self._kept: set[int] = set()  # the layers whose keys and values are written
        # By the value of row_in_part: the tokens, the first of them that the table has, and how many it has.
        self._parts: dict[int, tuple[Operand, Constant, int]] = {}
        # Memory that operations write in place, and tensors that no operation has made.
        self._in_place: set[int] = set()
        self._made: list[Tensor] = []

    def run(self) -> Program:
        """Raises Inexpressible."""
        check_choices(self._recording)
        operations = live(self._recording)
        blank = {memory(one.outputs[0]) for one in operations if one.name.partition(".")[0] in BLANK}
        self._in_place = {memory(one.outputs[0]) for one in operations if is_in_place(one.name)}
        self._in_place |= {memory(one.outputs[0]) for one in operations if copies(one.name)} - blank
        for operation in operations:
            if operation.name != "view":
                self._lower(operation)
        self.program.output, view = self._known.find(self._recording.output)
        if not view.is_whole:
            raise Inexpressible("its logits, or the hidden states that it hands on, are a part of something")
        return self.program

    def _lower(self, operation: Operation) -> None:
        given = [arg for arg in tree_leaves(operation.args) if isinstance(arg, Tensor)]
        name = operation.name.partition(".")[0]
        if name in BLANK:
            (made,) = operation.outputs
            self._blank[memory(made)] = operation, torch.zeros(made.untyped_storage().nbytes(), dtype=torch.bool)
            return
        if not any(self._known.is_value(tensor) for tensor in given):
            return  # a constant, whose value the recording has
        changed = self._recording.changed
        read = given[1:] if fills(name) else given
        if any(map(self._is_changed, read)) or any(memory(out) in changed for out in operation.outputs):
            raise Inexpressible(f"{name} on memory that is written in place")
        if fills(name):
            self._fill(name, operation)
        elif is_in_place(name):
            self._write_in_place(name[:-1], operation)
        elif name in MAPS:
            self._map(name, operation)
        elif (lower := getattr(self, f"_lower_{name}", None)) is not None:
            lower(operation)
        else:
            raise Inexpressible(f"the operation {operation.name}")

    def _is_changed(self, tensor: Tensor) -> bool:
        """Whether a tensor's numbers depend on when they are read, or have not all been written."""
        at = memory(tensor)
        if at in self._blank and self._known.is_value(tensor) and not self._is_full(at):
            return True
        return at in self._recording.changed or (at in self._in_place and not self._known.is_value(tensor))

    def _is_full(self, at: int) -> bool:
        """Whether all numbers of new memory have been written."""
        made, written = self._blank[at]
        (tensor,) = made.outputs
        return bool(written.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset()).all())

    def _write_in_place(self, name: str, operation: Operation) -> None:
        """Makes a new value of memory that is written in place as a whole. Earlier steps have read the old one."""
        target = operation.outputs[0]
        value, view = self._known.find(target)
        if not view.is_whole or value.width * len(self._recording.tokens) != target.numel():
            raise Inexpressible(f"{name} in place on a part of something")
        self._map(name, operation)

    def _fill(self, name: str, operation: Operation) -> None:
        """Writes to a part of new memory that nothing has written to before, or copies to a part of a value."""
        target, *how = operation.args
        if copies(name) and self._known.is_value(target) and memory(target) not in self._blank:
            self._overwrite(target, how[0])
            return
        if memory(target) not in self._blank or operation.kwargs:
            raise Inexpressible(f"{name} on memory that is written in place")
        made, written = self._blank[memory(target)]
        part = written.as_strided(target.shape, target.stride(), target.storage_offset())
        if part.any():
            raise Inexpressible(f"{name} on memory that was written before")
        part.fill_(True)
        if name == "copy_":
            source = how[0]
            row = self._known.row_of([source], target.dim())
            self._begin(made.outputs[0], target.stride(row))
            inputs = (self._known.operand(source, target.shape, row),)
            sizes = squeezed(target.shape, row, target.shape)
            self.program.steps.append(Map(self._known.part(target, row), sizes, "{0}", inputs))
            return
        dim, places, value = how
        is_last = dim % target.dim() == target.dim() - 1
        if "zeros" not in made.name or not is_last or isinstance(value, Tensor) or value <= 0:
            raise Inexpressible("scatter_ of other than one number above 0 over zeros")
        row = self._known.row_of([places], target.dim())
        self._begin(made.outputs[0], target.stride(row))
        shape = *target.shape, places.shape[-1]
        count = self._count(target.shape[-1])
        formula = f"{literal(value)} * {SAME}"
        self._add_reduce(formula, [places[..., None, :], count[:, None]], shape, target[..., None], row, "{}", True)

    def _overwrite(self, target: Tensor, source: Tensor) -> None:
        """Makes a new value of memory a part of which is copied anew. Earlier steps have read the old one."""
        if not target.numel():
            return
        row = self._known.row_of([target], target.dim())
        inputs = (self._known.operand(source, target.shape, row),)
        before, after = self._known.renew(target)
        whole = Operand(after, 0, (1,)), (after.width,), "{0}", (Operand(before, 0, (1,)),)
        self.program.steps.append(Map(*whole))
        sizes = squeezed(target.shape, row, target.shape)
        self.program.steps.append(Map(self._known.part(target, row), sizes, "{0}", inputs))

    def _begin(self, made: Tensor, row_stride: int) -> None:
        """Makes a value of new memory, unless that was done. row_stride: numbers from a row to the next."""
        if not self._known.is_value(made):
            self._known.fresh(made, made.stride().index(row_stride))

    def _map(self, name: str, operation: Operation) -> None:
        (out,) = operation.outputs
        if out.is_complex():
            self._map_complex(name, operation)
            return
        tensors = [arg for arg in operation.args[:2] if isinstance(arg, Tensor)]
        numbers = [arg for arg in operation.args[:2] if isinstance(arg, int | float)]
        others = {key: value for key, value in operation.kwargs.items() if value is not None}
        if name == "div" and others.pop("rounding_mode", None):
            raise Inexpressible("a division that rounds")
        formula = MAPS[name](**others)
        if name == "_to_copy" and out.dtype == torch.bool:
            formula = "1.0f * ({0} != 0.0f)"
        if len(operation.args) > 2 or (numbers and "{1}" not in formula):
            raise Inexpressible(f"{name} with {', '.join(map(str, operation.args[1:]))}")
        for number in numbers:
            formula = formula.replace("{1}", literal(number))
        self._add_map(formula, tensors, out)

    def _map_complex(self, name: str, operation: Operation) -> None:
        """A product of complex numbers, as of pairs of real ones."""
        first, second = operation.args
        if name != "mul":
            raise Inexpressible(f"{name} of complex numbers")
        (out,) = operation.outputs
        if not isinstance(second, Tensor):
            self._add_map(f"{{0}} * {literal(second)}", [torch.view_as_real(first)], torch.view_as_real(out))
            return
        (a, b), (c, d) = (torch.view_as_real(one).unbind(-1) for one in (first, second))
        self._add_complex(out, ("{0} * {1} - {2} * {3}", [a, c, b, d]), ("{0} * {1} + {2} * {3}", [a, d, b, c]))

    def _lower_polar(self, operation: Operation) -> None:
        inputs = list(operation.args)
        self._add_complex(operation.outputs[0], ("{0} * cosf({1})", inputs), ("{0} * sinf({1})", inputs))

    def _add_complex(self, out: Tensor, real: tuple[str, list[Tensor]], imaginary: tuple[str, list[Tensor]]) -> None:
        """Maps for both parts of complex numbers."""
        row = self._known.row_of(real[1], out.dim())
        self._known.fresh(torch.view_as_real(out), row)
        for target, (formula, tensors) in zip(torch.view_as_real(out).unbind(-1), (real, imaginary), strict=True):
            inputs = tuple(self._known.operand(tensor, out.shape, row) for tensor in tensors)
            sizes = squeezed(out.shape, row, out.shape)
            self.program.steps.append(Map(self._known.part(target, row), sizes, formula, inputs))

    def _add_map(self, formula: str, tensors: list[Tensor], out: Tensor) -> None:
        row = self._known.row_of(tensors, out.dim())
        inputs = tuple(self._known.operand(tensor, out.shape, row) for tensor in tensors)
        self.program.steps.append(Map(self._known.out(out, row), squeezed(out.shape, row, out.shape), formula, inputs))

    def _lower_masked_fill(self, operation: Operation) -> None:
        tensor, mask, value = operation.args
        filled = literal(max(float(value), LOWEST))
        self._add_map(f"{{0}} * (1.0f - {{1}}) + {filled} * {{1}}", [tensor, mask], operation.outputs[0])

    def _lower_where(self, operation: Operation) -> None:
        mask, *choices = operation.args
        tensors, names = [mask], list[str]()
        for choice in choices:
            if isinstance(choice, Tensor):
                tensors.append(choice)
            names.append(f"{{{len(tensors) - 1}}}" if isinstance(choice, Tensor) else literal(choice))
        self._add_map(f"{names[0]} * {{0}} + {names[1]} * (1.0f - {{0}})", tensors, operation.outputs[0])

    def _lower_index(self, operation: Operation) -> None:
        table, indices = operation.args
        if len(indices) != 1 or indices[0] is None or table.dim() != 1 or not self._known.is_value(indices[0]):
            raise Inexpressible("numbers by several indices, or of several dimensions")
        self._pick(table, indices[0], operation.outputs[0])

    def _lower_gather(self, operation: Operation) -> None:
        tensor, dim, places = operation.args
        if dim % tensor.dim() != tensor.dim() - 1 or tensor.dim() != 2 or not self._known.is_value(places):
            raise Inexpressible("numbers along another than the last dimension")
        self._pick(tensor, places, operation.outputs[0])

    def _pick(self, tensor: Tensor, places: Tensor, out: Tensor) -> None:
        """The numbers of a tensor at places in its last dimension: sums over all of it, in which one number counts."""
        row = self._known.row_of([places], places.dim())
        self._known.fresh(out, row)
        shape = *places.shape, tensor.shape[-1]
        tensors = [places[..., None], self._count(tensor.shape[-1]), tensor[..., None, :]]
        self._add_reduce(f"{SAME} * {{2}}", tensors, shape, out[..., None], row, "{}")

    def _count(self, size: int) -> Tensor:
        """0, 1, ... `size` - 1, as a constant."""
        self._made.append(torch.arange(size, dtype=torch.float32, device=self._recording.tokens.device))
        return self._made[-1]

    def _lower_pow(self, operation: Operation) -> None:
        base, exponent = operation.args
        self._add_map(power(exponent), [base], operation.outputs[0])

    def _lower_clamp(self, operation: Operation) -> None:
        tensor, *limits = operation.args
        low, high = (*limits, None, None)[:2]
        formula = "{0}"
        if low is not None:
            formula = f"larger({formula}, {literal(low)})"
        if high is not None and high < math.inf:
            formula = f"smaller({formula}, {literal(high)})"
        self._add_map(formula, [tensor], operation.outputs[0])

    def _lower_mean(self, operation: Operation) -> None:
        self._reduce(operation, "{{}} / {count}.0f")

    def _lower_sum(self, operation: Operation) -> None:
        self._reduce(operation, "{{}}")

    def _lower_amax(self, operation: Operation) -> None:
        self._reduce(operation, "{{}}", is_maximum=True)

    def _reduce(self, operation: Operation, finish: str, is_maximum: bool = False) -> None:
        if len(operation.args) < 2:
            raise Inexpressible(f"{operation.name} over all dimensions")
        tensor, dims = operation.args[:2]
        reduced = {dim % tensor.dim() for dim in ([dims] if isinstance(dims, int) else dims)}
        row = self._known.row_of([tensor], tensor.dim())
        long = [dim for dim, size in enumerate(tensor.shape) if size > 1 and dim != row]
        if row in reduced or [dim for dim in long if dim in reduced] != long[-1:]:
            raise Inexpressible(f"{operation.name} over other than the last dimension")
        (out,) = operation.outputs
        is_kept = out.dim() == tensor.dim()
        self._known.fresh(out, row if is_kept else row - sum(dim < row for dim in reduced))
        kept = out.reshape([1 if dim in reduced else size for dim, size in enumerate(tensor.shape)])
        done = finish.format(count=tensor.shape[long[-1]] if long else 1)
        self._add_reduce("{0}", [tensor], tensor.shape, kept, row, done, is_maximum)

    def _add_reduce(
        self,
        formula: str,
        tensors: list[Tensor],
        shape: Sequence[int],
        kept: Tensor,
        row: int,
        finish: str,
        is_maximum: bool = False,
    ) -> None:
        """shape: to which tensors are broadcast. kept: a view of the outcome, a known value, that has the reduced
        dimensions as dimensions of size 1.
        """
        out = self._known.operand(kept, shape, row)
        inputs = tuple(self._known.operand(tensor, shape, row) for tensor in tensors)
        if kept.shape == torch.Size(shape):  # one number is reduced
            finished = finish.format(f"({formula})")
            self.program.steps.append(Map(out, squeezed(shape, row, shape), finished, inputs))
            return
        self.program.steps.append(Reduce(out, squeezed(shape, row, shape), formula, inputs, finish, is_maximum))

    def _lower__softmax(self, operation: Operation) -> None:
        tensor, dim = operation.args[:2]
        row = self._known.row_of([tensor], tensor.dim())
        if dim % tensor.dim() != tensor.dim() - 1 or row == tensor.dim() - 1:
            raise Inexpressible("a softmax over other than the last dimension")
        powers = tensor.new_empty(tensor.shape)
        largest, total = tensor.new_empty(*tensor.shape[:-1], 1), tensor.new_empty(*tensor.shape[:-1], 1)
        self._made += [powers, largest, total]
        for fresh in (largest, total):
            self._known.fresh(fresh, row)
        self._add_reduce("{0}", [tensor], tensor.shape, largest, row, "{}", is_maximum=True)
        self._add_map("exponential({0} - {1})", [tensor, largest], powers)
        self._add_reduce("{0}", [powers], tensor.shape, total, row, "{}")
        self._add_map("{0} / {1}", [powers, total], operation.outputs[0])

    def _lower_topk(self, operation: Operation) -> None:
        tensor, count, *how = operation.args
        dim, largest = (*how, -1, True)[:2] if len(how) != 1 else (how[0], True)
        values, places = operation.outputs
        if dim % tensor.dim() != tensor.dim() - 1 or not largest:
            raise Inexpressible("a choice other than of the largest of the last dimension")
        source, view = self._known.find(tensor)
        size, num_pieces = tensor.shape[-1], tensor.shape[1] if tensor.dim() == 3 else 1
        are_adjacent = (size == 1 or view.strides[-1] == 1) and (num_pieces == 1 or view.strides[1] == size)
        if tensor.dim() > 3 or view.row != 0 or not are_adjacent:
            raise Inexpressible("a choice among numbers that do not lie side by side")
        out = self._known.fresh(values, 0), self._known.fresh(places, 0)
        self.program.steps.append(TopK(*out, Operand(source, view.start, (1,)), size, count, num_pieces))

    def _lower_expert_product(self, operation: Operation) -> None:
        x, experts, weight, *bias = operation.args
        source, view = self._known.find(x)
        chosen, places = self._known.find(experts)
        if view.row != 0 or view.strides[-1] != 1 or places.row != 0 or places.strides[1] > 1:
            raise Inexpressible("experts of rows that are not in order")
        stride = view.strides[1] if x.dim() == 3 else 0
        out = self._known.fresh(operation.outputs[0], 0)
        self.program.steps.append(
            ExpertProduct(
                out, Operand(source, view.start, (stride, 1)), Operand(chosen, places.start, (1,)), weight,
                self._known.constant(bias[0]) if bias else None, experts.shape[1],
            )
        )  # fmt: skip

    def _lower_native_layer_norm(self, operation: Operation) -> None:
        tensor, shape, weight, bias, eps = operation.args
        out, mean, scale = operation.outputs
        row = self._known.row_of([tensor], tensor.dim())
        if len(shape) != 1:
            raise Inexpressible("a layer norm over several dimensions")
        (size,) = shape
        for fresh in (mean, scale):
            self._known.fresh(fresh, row)
        self._add_reduce("{0}", [tensor], tensor.shape, mean, row, f"{{}} / {size}.0f")
        root = f"1.0f / sqrtf({{}} / {size}.0f + {literal(eps)})"
        self._add_reduce("({0} - {1}) * ({0} - {1})", [tensor, mean], tensor.shape, scale, row, root)
        formula, inputs = "({0} - {1}) * {2}", [tensor, mean, scale]
        for parameter, operator in ((weight, "*"), (bias, "+")):
            if parameter is not None:
                formula = f"{formula} {operator} {{{len(inputs)}}}"
                inputs.append(parameter)
        self._add_map(formula, inputs, out)

    def _lower_cat(self, operation: Operation) -> None:
        tensors, dim = _joined(operation)
        self._join(tensors, dim % tensors[0].dim(), operation.outputs[0])

    def _lower_stack(self, operation: Operation) -> None:
        tensors, dim = _joined(operation)
        dim %= tensors[0].dim() + 1
        self._join([tensor.unsqueeze(dim) for tensor in tensors], dim, operation.outputs[0])

    def _join(self, tensors: list[Tensor], dim: int, out: Tensor) -> None:
        tensors = [tensor for tensor in tensors if tensor.numel()]
        row = self._known.row_of([tensor for tensor in tensors if self._known.is_value(tensor)], out.dim())
        if row == dim:
            raise Inexpressible("rows that are joined")
        value = self._known.fresh(out, row)
        strides, start = self._known.find(out)[1].strides, 0
        for tensor in tensors:
            target = Operand(value, start, squeezed(tensor.shape, row, strides))
            source = self._known.operand(tensor, tensor.shape, row)
            self.program.steps.append(Map(target, squeezed(tensor.shape, row, tensor.shape), "{0}", (source,)))
            start += tensor.shape[dim] * strides[dim]

    def _lower_embedding(self, operation: Operation) -> None:
        table, index = operation.args[:2]
        (out,) = operation.outputs
        source, view = self._known.find(index)
        if not source.is_integer or source.width != 1 or self._known.is_value(table):
            raise Inexpressible("a lookup by something other than tokens or positions")
        assert view.row is not None
        target = self._known.out(out, view.row)
        if id(source) in self._parts:
            tokens, begin, size = self._parts[id(source)]
            own = self._known.constant(table[:size], is_table=True)
            self._lookup_in_part(own, table.shape[1], target, tokens, begin, size)
            return
        self.program.steps.append(
            Gather(target, Operand(source, view.start, ()), self._known.constant(table, is_table=True))
        )

    def _lower_quantized_lookup(self, operation: Operation) -> None:
        index, table = operation.args
        source, view = self._known.find(index)
        assert view.row is not None
        target = self._known.out(operation.outputs[0], view.row)
        if id(source) in self._parts:
            self._lookup_in_part(table, table.num_inputs, target, *self._parts[id(source)])
            return
        self.program.steps.append(Gather(target, Operand(source, view.start, ()), table))

    def _lower_row_in_part(self, operation: Operation) -> None:
        tokens, first, size = operation.args
        source, view = self._known.find(tokens)
        assert view.row is not None
        place = self._known.fresh(operation.outputs[0], view.row)
        # An argument, so that the text is the same on all ranks.
        begin = Constant(tokens.new_full((1,), float(first), dtype=torch.float32))
        self._parts[id(place)] = Operand(source, view.start, ()), begin, size

    def _lookup_in_part(
        self,
        table: Constant | QuantizedWeight,
        width: int,
        target: Operand,
        tokens: Operand,
        begin: Constant,
        size: int,
    ) -> None:
        """Looks tokens up in a part of a table: the nearest row that is there, times 0 if it is not the token's own.

        begin: the first token of the part. size: its rows.
        """
        near, rows = Value(1, is_integer=True), Value(width)
        offset, place, whole = Operand(begin, 0, ()), Operand(near, 0, ()), Operand(rows, 0, (1,))
        nearest = f"smaller(larger({{0}} - {{1}}, 0.0f), {literal(size - 1)})"
        self.program.steps.append(Map(place, (), nearest, (tokens, offset)))
        self.program.steps.append(Gather(whole, place, table))
        is_own = "1.0f - smaller(larger({1} - {2} - {3}, {2} + {3} - {1}), 1.0f)"
        inputs = whole, *(Operand(one.source, one.start, (0,)) for one in (tokens, offset, place))
        self.program.steps.append(Map(target, (width,), f"{{0}} * ({is_own})", inputs))

    def _lower_all_reduce(self, operation: Operation) -> None:
        x, group = operation.args
        source, row = self._sent(x)
        self.program.steps.append(AllReduce(self._known.fresh(operation.outputs[0], row), source, group))

    def _lower_all_gather(self, operation: Operation) -> None:
        x, sizes, group = operation.args
        source, row = self._sent(x)
        self.program.steps.append(AllGather(self._known.fresh(operation.outputs[0], row), source, sizes, group))

    def _sent(self, tensor: Tensor) -> tuple[Operand, int]:
        """A tensor that is sent to other ranks, and its dimension of rows. It must be the whole of a value."""
        if not self._known.is_value(tensor):
            raise Inexpressible("constants that are sent to other ranks")
        source, view = self._known.find(tensor)
        if not view.is_whole or view.row is None:
            raise Inexpressible("a part of something that is sent to other ranks")
        return Operand(source, 0, (1,)), view.row

    def _lower_mm(self, operation: Operation) -> None:
        x, weight = operation.args
        self._product(x, weight, None, operation.outputs[0])

    def _lower_bmm(self, operation: Operation) -> None:
        """Products of columns with rows, as of frequencies with positions."""
        columns, rows = operation.args
        if columns.shape[2] != 1:
            raise Inexpressible("products of batches")
        self._add_map("{0} * {1}", [columns, rows], operation.outputs[0])

    def _lower_addmm(self, operation: Operation) -> None:
        bias, x, weight = operation.args
        if operation.kwargs or bias.dim() != 1:
            raise Inexpressible("a product with a scaled sum")
        self._product(x, weight, self._known.constant(bias), operation.outputs[0])

    def _lower_quantized_product(self, operation: Operation) -> None:
        x, weight, *bias = operation.args
        self._product(x, weight, self._known.constant(bias[0]) if bias else None, operation.outputs[0])

    def _product(self, x: Tensor, weight: Tensor | QuantizedWeight, bias: Constant | None, out: Tensor) -> None:
        source, view = self._known.find(x) if self._known.is_value(x) else (None, None)
        is_constant = isinstance(weight, QuantizedWeight) or not self._known.is_value(weight)
        if source is None or view is None or not is_constant:
            raise Inexpressible("a product of other than rows with a weight")
        if view.row != 0 or view.strides[1] > 1:
            raise Inexpressible("a product with rows that are not in order")
        if isinstance(weight, Tensor) and weight.dtype != self._recording.dtype:
            own = weight.to(self._recording.dtype)
            if not torch.equal(own.to(weight.dtype), weight):
                self._sum_products(x, weight, bias, out)
                return
            weight = own
        value = self._known.fresh(out, 0)
        self.program.steps.append(Product(value, Operand(source, view.start, (1,)), weight, bias))

    def _sum_products(self, x: Tensor, weight: Tensor, bias: Constant | None, out: Tensor) -> None:
        """A product in another format than the model's own, as of routers in float32, number by number."""
        if bias is not None:
            raise Inexpressible("a product with a bias in another format than the model's own")
        self._known.fresh(out, 0)
        shape = *out.shape, x.shape[1]
        self._add_reduce("{0} * {1}", [x[:, None, :], weight.t()[None]], shape, out[..., None], 0, "{}")

    def _lower_attention(self, operation: Operation) -> None:
        query, key, value, layer, how = operation.args
        asked, heads = self._heads(query), key.shape[1]
        if layer not in self._kept:  # else it reads the keys and values of an earlier layer
            self._kept.add(layer)
            for tensor, is_key in ((key, True), (value, False)):
                self.program.steps.append(Keep(self._heads(tensor), layer, is_key, heads, tensor.shape[3]))
        out = self._known.fresh(operation.outputs[0], 1)
        sizes, sinks = (query.shape[1] // heads, query.shape[3], value.shape[3]), None
        if how.sinks is not None:
            how, sinks = replace(how, sinks=None), self._known.constant(how.sinks.detach())
        self.program.steps.append(Attention(out, asked, layer, how, heads, *sizes, sinks))

    def _heads(self, tensor: Tensor) -> Operand:
        """[1, heads, R, D] as an operand whose stride is that of heads."""
        if not self._known.is_value(tensor):
            raise Inexpressible("attention over constants")
        source, view = self._known.find(tensor)
        if view.row != 2 or (view.strides[3] != 1 and tensor.shape[3] > 1):
            raise Inexpressible("attention over heads whose numbers do not lie side by side")
        return Operand(source, view.start, (view.strides[1],))

    def _lower_convolution(self, operation: Operation) -> None:
        inputs, layer, weight, *bias = operation.args
        taps, own = self._known.constant(weight[:, 0].T), self._known.constant(bias[0]) if bias else None
        out = self._known.fresh(operation.outputs[0], 0)
        self.program.steps.append(Convolution(out, self._by_row(inputs), layer, taps, own))

    def _lower_recurrence(self, operation: Operation) -> None:
        queries, keys, values, logs, layer, *rates = operation.args
        out = self._known.fresh(operation.outputs[0], 0)
        asked, known, added = (self._by_row(tensor) for tensor in (queries, keys, values))
        is_fixed = not self._known.is_value(logs)  # the same decays for all rows
        decays = self._known.operand(logs, logs.shape, 0) if is_fixed else self._by_row(logs)
        shape = values.shape[1], keys.shape[1], keys.shape[2], values.shape[2]
        rate = self._by_row(rates[0]) if rates else None
        self.program.steps.append(Recurrence(out, asked, known, added, decays, rate, layer, *shape))

    def _lower_scan(self, operation: Operation) -> None:
        queries, keys, values, times, rates, layer = operation.args
        out = self._known.fresh(operation.outputs[0], 0)
        asked, known, added, elapsed = (self._by_row(tensor) for tensor in (queries, keys, values, times))
        self.program.steps.append(
            Scan(out, asked, known, added, elapsed, self._known.constant(rates.contiguous()), layer)
        )

    def _by_row(self, tensor: Tensor) -> Operand:
        """[R, N] or [R, heads, N], whose numbers lie side by side, as an operand with one stride for each dimension."""
        if not self._known.is_value(tensor):
            raise Inexpressible("a recurrent layer over constants")
        source, view = self._known.find(tensor)
        if view.row != 0 or (view.strides[-1] != 1 and tensor.shape[-1] > 1):
            raise Inexpressible("a recurrent layer over numbers that do not lie side by side")
        return Operand(source, view.start, (*view.strides[1:-1], 1))


def _joined(operation: Operation) -> tuple[list[Tensor], int]:
    """The tensors that are joined, and the dimension along which they are."""
    tensors, *dim = operation.args
    return tensors, dim[0] if dim else 0


def live(recording: Recording) -> list[Operation]:
    """The operations that the logits depend on."""
    needed, kept = {memory(recording.output)}, []
    for operation in reversed(recording.operations):
        if any(memory(out) in needed for out in operation.outputs):
            kept.append(operation)
            for arg in tree_leaves((operation.args, operation.kwargs)):
                if isinstance(arg, Tensor):
                    needed.add(memory(arg))
    return kept[::-1]


def check_choices(recording: Recording) -> None:
    """Raises Inexpressible if the model reads a number that depends on positions, as it may then do something else.

    Numbers that depend on tokens are left to the second recording: models read them to warn of padding.
    """
    by_position = {memory(recording.positions)}
    for operation in recording.operations:
        given = {memory(arg) for arg in tree_leaves(operation.args) if isinstance(arg, Tensor)}
        if given & by_position:
            if operation.name.startswith("_local_scalar_dense"):
                raise Inexpressible("a choice by the positions of rows")
            by_position |= {memory(out) for out in operation.outputs}
