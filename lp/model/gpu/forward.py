"""Runs a plan: the fused forward of a model over a step's rows, all of it on the device.

R rows, V vocabulary
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from lp.kv_cache.arena import Arena
from lp.model.fast_forward import BeforeAttention, SequenceRows
from lp.model.gpu.attention import attend, attend_in_order, lay_paths, new_counters, tile_of
from lp.model.gpu.experts import Tiles, lay_tiles, multiply_experts
from lp.model.gpu.packed_product import PackedProducts
from lp.model.gpu.plan import (
    Instruction,
    RunAttention,
    RunCollective,
    RunExperts,
    RunLookup,
    RunPackedProduct,
    RunProduct,
    RunStage,
    RunTopK,
    packed_weights,
)
from lp.model.gpu.products import Multiply
from lp.model.gpu.prompts import PromptAttention, PromptStep
from lp.model.gpu.sinks import Store
from lp.model.gpu.stage import Slots
from lp.model.gpu.step_tensors import StepTensors
from lp.model.program.group import all_gather, all_reduce
from lp.model.program.steps import AllGather, AllReduce, Collective, Operand, Program, TopK, Value
from lp.model.quantization.packed import PackedWeight
from lp.platform import build as kernels


class FusedForward:
    """A model's forward by kernels of our own and the products of a function.

    arena: holds the keys and values of all its sequences. is_invariant: whether a row's logits are the same to the last
    bit whatever other rows there are and however much of its path is cached. prompts: how their attention is computed;
    None if as that of all other rows.
    """

    def __init__(
        self,
        program: Program,
        plan: list[Instruction],
        dtype: torch.dtype,
        arena: Arena,
        multiply: Multiply,
        is_invariant: bool = False,
        prompts: PromptAttention | None = None,
    ):
        """dtype: of weights, keys and values. multiply: treats each row alike if the forward is invariant."""
        self.plan = plan
        self.arena = arena
        self.is_invariant = is_invariant
        self.prompts = prompts
        self.incoming_width = program.incoming and program.incoming.width
        self.output_width = program.output.width
        self.gives_logits = program.gives_logits
        self._program = program
        self._dtype = dtype
        self._multiply = multiply
        self._packed = PackedProducts(arena.device, is_invariant, packed_weights(plan))
        self._counters = new_counters(arena.device)
        self._stores = {layer: (keys, arena.values[layer]) for layer, keys in arena.keys.items()}

    def __call__(
        self,
        given: StepTensors,
        answered: int | Tensor,
        before_attention: BeforeAttention | None = None,
        incoming: Tensor | None = None,
        out: Tensor | None = None,
        sequences: Sequence[SequenceRows] = (),
        is_long: bool = False,
    ) -> Tensor:
        """See ArenaForward."""
        rows = slice(len(given.tokens) - answered, None) if isinstance(answered, int) else answered
        prompts = self.prompts and self.prompts.find(sequences, given, self._counters)
        run = _Run(
            self._program, self._dtype, self._multiply, self._packed, self.is_invariant, given, self._stores,
            self._counters, rows, before_attention, incoming, prompts, is_long,
        )  # fmt: skip
        found = run.run(self.plan)
        return found.float() if out is None else out.copy_(found)

    def differs_after_long(self, num_rows: int) -> bool:
        """See ArenaForward."""
        if self.is_invariant:
            return False
        layers = [one.step for one in self.plan if isinstance(one, RunAttention)]
        return any(
            tile_of(step, num_rows, self._stores[step.layer][0])
            != tile_of(step, num_rows, self._stores[step.layer][0], is_long=True)
            for step in layers
        )


class _Run:
    """One run. The arrays of values are made when they are first needed, and let go after they are last needed."""

    def __init__(
        self,
        program: Program,
        dtype: torch.dtype,
        multiply: Multiply,
        packed: PackedProducts,
        is_invariant: bool,
        given: StepTensors,
        stores: dict[int, tuple[Tensor, Tensor]],
        counters: Tensor,
        answered: slice | Tensor,
        before_attention: BeforeAttention | None,
        incoming: Tensor | None,
        prompts: PromptStep | None,
        is_long: bool,
    ):
        self._program = program
        self._dtype = dtype
        self._multiply, self._packed = multiply, packed
        self._given = given
        self._stores = stores
        self._counters = counters
        self._answered, self._before_attention, self._prompts = answered, before_attention, prompts
        self._is_long = is_long
        self._paths = lay_paths(given) if is_invariant else None
        # The experts for whose rows tiles were laid out last, and these tiles.
        self._tiles: tuple[Value, Tiles] | None = None
        self._arrays: dict[Value, Tensor] = {program.tokens: given.tokens, program.positions: given.positions}
        if program.incoming is not None:
            assert incoming is not None, "a stage of a pipeline, but for the first, gets hidden states"
            self._arrays[program.incoming] = incoming

    def run(self, plan: list[Instruction]) -> Tensor:
        for one in plan:
            match one:
                case RunStage():
                    self._stage(one)
                case RunProduct():
                    self._product(one)
                case RunPackedProduct():
                    x = self._read(one.step.x, one.weight.num_inputs)
                    self._arrays[one.step.out] = self._packed.multiply(x, one.weight, one.bias)
                case RunLookup():
                    self._look_up(one)
                case RunAttention():
                    self._attention(one)
                case RunCollective():
                    self._collective(one.step)
                case RunTopK():
                    self._choose(one.step)
                case RunExperts():
                    self._experts(one)
            for value in one.last_uses:
                del self._arrays[value]
        return self._arrays[self._program.output]

    def _stage(self, one: RunStage) -> None:
        for value in one.outputs:
            self._arrays[value] = self._new(value)
        arguments = [self._argument(argument) for argument in one.arguments]
        kernels.start(one.kernel, (len(self._given.tokens), one.num_programs), *arguments, num_warps=one.num_warps)

    def _argument(self, argument: Value | Store | Slots | Tensor | object) -> Tensor:
        match argument:
            case Value():
                return self._arrays[argument]
            case Store():
                keys, values = self._stores[argument.layer]
                return keys if argument.is_key else values
            case Slots():
                return self._given.slots
            case Tensor():
                return argument
        raise AssertionError(argument)

    def _product(self, one: RunProduct) -> None:
        x = self._read(one.step.x, one.weight.shape[0])
        self._arrays[one.step.out] = self._multiply(x, one.weight, one.bias)

    def _look_up(self, one: RunLookup) -> None:
        step = one.step
        assert isinstance(step.index.source, Value) and step.index.source.width == 1
        index = self._arrays[step.index.source].view(-1)
        self._arrays[step.out] = self._packed.look_up(one.table, index, self._dtype)

    def _collective(self, step: Collective) -> None:
        match step:
            case AllReduce():
                self._arrays[step.out] = all_reduce(self._read(step.x, step.out.width), step.group)
            case AllGather():
                own = self._read(step.x, step.sizes[step.group.rank])
                self._arrays[step.out] = all_gather(own, step.sizes, step.group)

    def _choose(self, step: TopK) -> None:
        x = self._read(step.x, step.num_pieces * step.size)
        found = x.reshape(len(x), step.num_pieces, step.size).topk(step.count, dim=-1)
        self._arrays[step.values], self._arrays[step.places] = (one.view(len(x), -1) for one in found)

    def _experts(self, one: RunExperts) -> None:
        step = one.step
        assert isinstance(step.x.source, Value) and isinstance(step.experts.source, Value)
        if self._tiles is None or self._tiles[0] is not step.experts.source:  # both products of a layer share them
            chosen = self._read(step.experts, step.num_choices)
            self._tiles = step.experts.source, lay_tiles(chosen, step.shape[0])
        x = self._arrays[step.x.source]
        strides = x.stride(0), step.x.strides[0]
        x, tiles = x[:, step.x.start :], self._tiles[1]
        if isinstance(one.weight, PackedWeight):
            found = self._packed.multiply_experts(x, strides, step, one.weight, one.bias, tiles)
        else:
            found = multiply_experts(x, strides, one.weight, one.bias, step.num_choices, tiles)
        self._arrays[step.out] = found

    def _read(self, operand: Operand, size: int) -> Tensor:
        assert isinstance(operand.source, Value)
        return self._arrays[operand.source][:, operand.start : operand.start + size]

    def _attention(self, one: RunAttention) -> None:
        step = one.step
        assert isinstance(step.query.source, Value)
        if self._before_attention is not None:
            self._before_attention(step.layer)
        query, (keys, values) = self._arrays[step.query.source], self._stores[step.layer]
        out = self._prompts and self._prompts.attend(step, query, keys, values)
        if out is None:
            out = self._new(step.out)
            if self._paths is None:
                attend(step, query, keys, values, self._given, self._counters, out, self._is_long)
            else:
                attend_in_order(step, query, keys, values, self._given, self._paths, out)
        self._arrays[step.out] = out
        if one.is_last:
            self._keep_answered()

    def _keep_answered(self) -> None:
        """Goes on with the rows whose logits are wanted."""
        self._arrays = {value: array[self._answered] for value, array in self._arrays.items()}
        given = self._given
        self._given = replace(given, tokens=given.tokens[self._answered], positions=given.positions[self._answered])

    def _new(self, value: Value) -> Tensor:
        dtype = torch.int64 if value.is_integer else self._dtype if value.is_half else torch.float32
        return torch.empty(len(self._given.tokens), value.width, dtype=dtype, device=self._given.tokens.device)
