"""What recurrent layers of all kinds share: how the rows of a tree follow each other, convolutions, and the walk.

The state of a row is that of its parent, advanced by the row; the first rows follow the cached tokens. All rows of a
piece are computed together, as the sum over the tokens before a row is a sum over its ancestors: a matrix product with
the relation between rows as its mask, as in attention.

    R rows of a step, N rows of a piece, C channels of a convolution and K its width, H heads, G heads of keys, each of
    which H / G heads share, D dimension of a key, E dimension of a value
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from lp.kv_cache.recurrent import RecurrentStates, State
from lp.model.current_step import current_step
from lp.platform.hardware import upload

# The most rows of a piece of a prompt.
MOST_ROWS = 64


class Paths:
    """How the rows of a piece follow each other. parents: [N] row of each parent; -1 is what came before the piece.

    visibility: [N, N] bool; a row sees its ancestors and itself.
    """

    def __init__(self, parents: np.ndarray, visibility: Tensor):
        self.parents, self.visibility = parents, visibility
        self._windows: dict[int, Tensor] = {}

    def windows(self, width: int) -> Tensor:
        """int64 [width, N]: for each row itself and the `width - 1` inputs before it, the earliest first, as places
        among the last `width - 1` inputs before the piece and the piece's own.
        """
        if width not in self._windows:
            num_before = width - 1
            before = np.concatenate([np.arange(-1, num_before - 1), num_before + self.parents])
            places = [np.arange(num_before, num_before + len(self.parents))]
            for _ in range(num_before):
                places.append(before[places[-1]])
            self._windows[width] = upload(np.stack(places[::-1]), self.visibility.device)
        return self._windows[width]

    @cached_property
    def strict(self) -> Tensor:
        """[N, N] bool: a row sees its ancestors."""
        return self.visibility & ~torch.eye(len(self.visibility), dtype=torch.bool, device=self.visibility.device)


class Piece(NamedTuple):
    """Rows [begin, end) of a step. is_snapshot: whether the state before them is to be kept."""

    begin: int
    end: int
    paths: Paths
    is_snapshot: bool


def split(
    parents: np.ndarray, visibility: Tensor, num_cached: int, num_certain: int, states: RecurrentStates
) -> list[Piece]:
    """The pieces of a step, all but the last of which are chains.

    num_certain: how many first rows are a chain that is part of the sequence. They are split where snapshots are made,
    and so that no piece of a prompt is large.
    """
    snapshots = {stop - num_cached for stop in states.stops(num_cached, num_cached + num_certain)}
    first = MOST_ROWS - num_cached % MOST_ROWS
    ends = sorted(snapshots | set(range(first, num_certain, MOST_ROWS)))
    bounds = [0, *ends, len(parents)]
    return [
        Piece(begin, end, Paths(parents[begin:end] - begin, visibility[begin:end, begin:end]), begin in snapshots)
        for begin, end in pairwise(bounds)
    ]


class Added(Protocol):
    """What the rows of a piece add to a layer's matrix."""

    def advance(self, matrix: Tensor, rows: Sequence[int] | slice, parent: int) -> Tensor:
        """The matrix after `rows`: see `Factors.advance`."""
        ...


@dataclass
class Products:
    """keys, values: [H, N, D] and [H, N, E], whose products are added to the matrix. sums: [N, H] float64, the sum of
    each row's decays and its ancestors'.
    """

    keys: Tensor
    values: Tensor
    sums: Tensor

    def advance(self, matrix: Tensor, rows: Sequence[int] | slice, parent: int) -> Tensor:
        sums = self.sums[rows]
        whole = (sums[-1] - self.sums[parent] if parent >= 0 else sums[-1]).exp().to(matrix.dtype)
        left = (sums[-1] - sums).exp().to(matrix.dtype).T[..., None]
        added = (self.keys[:, rows] * left).transpose(1, 2) @ self.values[:, rows]
        return matrix * whole[:, None, None] + added


@dataclass
class Scanned:
    """keys: [N, D], and values: [N, E], whose products are added to the matrix [D, E]. times: [N, E] and rates: [D, E],
    the exponentials of whose products are what is left of each number of the matrix after a row.
    """

    keys: Tensor
    values: Tensor
    times: Tensor
    rates: Tensor

    def after(self, row: int, matrix: Tensor) -> Tensor:
        """The matrix after a row, of that before it."""
        return matrix * (self.times[row] * self.rates).exp() + self.keys[row, :, None] * self.values[row]

    def advance(self, matrix: Tensor, rows: Sequence[int] | slice, parent: int) -> Tensor:
        for row in range(len(self.keys))[rows] if isinstance(rows, slice) else rows:
            matrix = self.after(row, matrix)
        return matrix


@dataclass
class Factors:
    """What advances a layer's state by rows of a piece. inputs: [N, C] of the convolution. added: to the matrix. What a
    layer has no use for is None.
    """

    inputs: Tensor | None = None
    added: Added | None = None

    def advance(self, state: State, rows: Sequence[int] | slice, parent: int) -> State:
        """The state after `rows`, a part of a path, where `state` is that after `parent`, the first row's parent."""
        after = list[Tensor]()
        if self.inputs is not None:
            after.append(torch.cat([state[0], self.inputs[rows]])[-len(state[0]) :])
        if self.added is not None:
            after.append(self.added.advance(state[-1], rows, parent))
        return tuple(after)


@dataclass
class PieceStates:
    """What a step leaves of one layer: see StepStates. factors: of the last piece, which begins at row `begin`."""

    begin: int
    paths: Paths
    factors: Factors
    passed: dict[int, State] = field(default_factory=dict)

    def replay(self, state: State, rows: Sequence[int]) -> State:
        own = [row - self.begin for row in rows]
        return self.factors.advance(state, own, int(self.paths.parents[own[0]]))


class RecurrentStep(Protocol):
    """A step that has recurrent layers."""

    def recur(self, layer: RecurrentLayer, inputs: Sequence[Tensor]) -> Tensor:
        """Computes what a layer's rows read of their states. inputs: [R, ...] each, for `RecurrentLayer.run`."""
        ...


class StateRows(Protocol):
    """Rows that follow each other, as a layer's states see them. A layer calls each function once at most. Its state is
    the last inputs of the convolution, if it has one, and then the matrix, if it has one.
    """

    def convolve(self, inputs: Tensor, convolution: nn.Conv1d) -> Tensor:
        """A causal convolution of each channel by itself along each row's path: [N, C] -> [N, C]."""
        ...

    def read(self, queries: Tensor, keys: Tensor, values: Tensor, logs: Tensor, rates: Tensor | None = None) -> Tensor:
        """Advances each row's matrix, and reads it: matrix = decay * its parent's + key * added, queries @ matrix.

        queries, keys: [N, G, D] and values: [N, H, E], all float32. logs: [N, H] float32, the logarithm of each row's
        decay. rates: [N, H]; a row then adds its value less what the decayed matrix says of its key, times the rate.
        None: it adds its value. Returns float32 [N, H, E].
        """
        ...

    def scan(self, queries: Tensor, keys: Tensor, values: Tensor, times: Tensor, rates: Tensor) -> Tensor:
        """Advances each row's matrix, and reads it: matrix = exp(times * rates) * its parent's + key * value, queries @
        matrix.

        queries, keys: [N, D], values, times: [N, E] and rates: [D, E], all float32. Returns float32 [N, E].
        """
        ...


class RecurrentLayer(nn.Module, ABC):
    """Takes the place of a layer of a transformers model, and computes the same with its weights: for the rows of a
    step, or by the layer itself where the forward has no step.

    index: of the layer in the model.
    """

    def __init__(self, mixer: nn.Module, index: int):
        super().__init__()
        self.mixer: Any = mixer
        self.index = index

    def forward(self, hidden_states: Tensor, **others) -> Tensor:
        """hidden_states: [1, R, hidden], and so is the result."""
        step: RecurrentStep | None = current_step()
        if step is None:
            return self.mixer(hidden_states, **others)
        return self.compute(hidden_states[0], step)[None]

    @abstractmethod
    def compute(self, hidden: Tensor, step: RecurrentStep) -> Tensor:
        """[R, hidden] -> [R, hidden], with what the step gives for the rows' inputs."""

    @abstractmethod
    def begin(self, like: Tensor) -> State:
        """The state before the first token. like: a tensor in the model's format, on its device."""

    @abstractmethod
    def run(self, rows: StateRows, inputs: Sequence[Tensor]) -> Tensor:
        """What rows read of their states, [N, ...]. inputs: [N, ...] each."""


def walk(layer: RecurrentLayer, states: RecurrentStates, pieces: list[Piece], inputs: Sequence[Tensor]) -> Tensor:
    """Runs the rows of one sequence through a layer. Returns what they read of their states, [R, ...].

    states: of the sequence. pieces: all rows of its step.
    """
    state = states.state(layer.index) or layer.begin(inputs[0])
    passed, outputs = {0: state}, list[Tensor]()
    for piece in pieces:
        rows = PieceRows(state, piece.paths)
        outputs.append(layer.run(rows, [one[piece.begin : piece.end] for one in inputs]))
        if piece is pieces[-1]:
            if piece.begin:
                passed[piece.begin] = state
            states.note(layer.index, PieceStates(piece.begin, piece.paths, rows.factors, passed))
        else:
            if piece.is_snapshot:
                passed[piece.begin] = state
            state = rows.factors.advance(state, slice(None), -1)
    return torch.cat(outputs) if len(outputs) > 1 else outputs[0]


class PieceRows:
    """The rows of a piece: see StateRows. state: before the piece. factors: what advances it by the rows."""

    def __init__(self, state: State, paths: Paths):
        self.state, self.paths = state, paths
        self._inputs: Tensor | None = None
        self._added: Added | None = None

    @property
    def factors(self) -> Factors:
        return Factors(self._inputs, self._added)

    def convolve(self, inputs: Tensor, convolution: nn.Conv1d) -> Tensor:
        self._inputs = inputs
        taps, every = convolution.weight[:, 0].T.float(), torch.cat([self.state[0], inputs]).float()
        windows = self.paths.windows(len(taps))
        result = every[windows[0]] * taps[0]
        for tap, window in zip(taps[1:], windows[1:], strict=True):
            result += every[window] * tap
        if convolution.bias is not None:
            result += convolution.bias
        return result.to(inputs.dtype)

    def read(self, queries: Tensor, keys: Tensor, values: Tensor, logs: Tensor, rates: Tensor | None = None) -> Tensor:
        matrix, decays, num_heads = self.state[-1], Decays(logs, self.paths), values.shape[1]
        queries, keys, added = _by_head(queries, num_heads), _by_head(keys, num_heads), values.transpose(0, 1)
        if rates is not None:
            # What a row adds is what its value differs from what its parent's state says of its key. That is a system
            # of equations, in which a row depends on its ancestors alone.
            rate = rates.float().T[..., None]
            overlaps = (keys @ keys.transpose(1, 2) * decays.left * rate).masked_fill(~self.paths.strict, 0.0)
            differences = (added - keys @ matrix * decays.whole) * rate
            added = torch.linalg.solve_triangular(overlaps, differences, upper=False, unitriangular=True)
        self._added = Products(keys, added, decays.sums)
        of_rows = (queries @ keys.transpose(1, 2) * decays.left) @ added
        return (of_rows + (queries @ matrix) * decays.whole).transpose(0, 1)

    def scan(self, queries: Tensor, keys: Tensor, values: Tensor, times: Tensor, rates: Tensor) -> Tensor:
        # Pairs of rows are not one product here, as every number has a decay of its own: rows come one after the other.
        self._added, matrices = Scanned(keys, values, times, rates), list[Tensor]()
        for row, parent in enumerate(self.paths.parents.tolist()):
            matrices.append(self._added.after(row, matrices[parent] if parent >= 0 else self.state[-1]))
        return torch.einsum("nd,nde->ne", queries, torch.stack(matrices))


class Decays:
    """How much of what a row has added is left after each of its descendants.

    sums: see Factors. left: [H, N, N] what is left after row i of what row j has added; 0 unless i sees j. whole:
    [H, N, 1] what is left after each row of the state before the piece.
    """

    def __init__(self, logs: Tensor, paths: Paths):
        """logs: [N, H] float32, the logarithm of each row's decay."""
        # The difference of two long sums would lose too much in float32.
        self.sums = paths.visibility.double() @ logs.double()
        sums = self.sums.T
        between = (sums[:, :, None] - sums[:, None, :]).masked_fill(~paths.visibility, float("-inf"))
        self.left = between.exp().float()
        self.whole = sums.exp().float()[..., None]


def _by_head(tensor: Tensor, num_heads: int) -> Tensor:
    """[N, G, D] -> [H, N, D]: each head of keys as often as heads share it."""
    return tensor.repeat_interleave(num_heads // tensor.shape[1], dim=1).transpose(0, 1)
