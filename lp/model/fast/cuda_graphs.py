"""The forward as CUDA graphs: what the host says to the GPU in a step is said once for each number of rows of a ladder.

A step is padded to the next rung: padding sees itself alone, nothing sees it, and what it writes to the cache lies
behind the rows. A graph is bound to the memory of one cache, so caches are kept and given to later sequences.

    R rows, P rows with padding, G query heads for each key/value head
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lp.model.attention import MaskKey
from lp.model.fast.traced import TracedForward

LADDER = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256)
"""Rows for which there are graphs; a step of more, a prompt's, runs without one."""

MOST_CACHES = 8
"""Caches that have graphs at a time. A graph holds on to its cache's memory."""

Capture = Callable[[Callable[[], Tensor]], tuple[Callable[[], None], Tensor]]
"""Takes what is to be run again and again; gives what runs it, and the place of its result."""


def capture_on_gpu(run: Callable[[], Tensor]) -> tuple[Callable[[], None], Tensor]:
    """After two runs on a stream beside, in which libraries settle down."""
    beside = torch.cuda.Stream()
    beside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(beside):
        for _ in range(2):
            run()
    torch.cuda.current_stream().wait_stream(beside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = run()
    return graph.replay, result


@dataclass
class Captured:
    """A captured forward and the memory that it reads and writes. logits: [P, V]."""

    tokens: Tensor
    positions: Tensor
    length: Tensor
    masks: list[Tensor]
    replay: Callable[[], None]
    logits: Tensor

    def fill(self, tokens: Tensor, positions: Tensor, length: int, masks: list[Tensor]) -> None:
        """Lays a step's inputs, padded, where the graph reads them."""
        num_rows, padded = len(tokens), len(self.tokens)
        self.tokens[:num_rows] = tokens
        self.positions[:num_rows] = positions
        self.positions[num_rows:] = length
        self.length.fill_(length)
        for own, mask in zip(self.masks, masks, strict=True):
            by_head = own.view(-1, padded, padded)
            by_head.fill_(float("-inf")).diagonal(dim1=1, dim2=2).zero_()
            by_head[:, :num_rows, :num_rows] = mask.view(-1, num_rows, num_rows)


class CapturedForward:
    """The FastForward of a model on a GPU, without sliding windows."""

    num_spare = 4

    def __init__(
        self,
        traced: TracedForward,
        mask_keys: list[MaskKey],
        ladder: Sequence[int] = LADDER,
        capture: Capture = capture_on_gpu,
    ):
        assert all(window is None for window, _ in mask_keys), "the place of a window's keys is not known to a graph"
        self.mask_keys = mask_keys
        self.ladder = ladder
        self._traced = traced
        self._capture = capture
        self._by_cache: OrderedDict[tuple[int, int], dict[int, Captured]] = OrderedDict()

    def room(self, num_rows: int) -> int:
        """Rows with padding: the next rung, or as they are beyond the ladder."""
        rung = bisect_left(self.ladder, num_rows)
        return self.ladder[rung] if rung < len(self.ladder) else num_rows

    def __call__(
        self,
        tokens: Tensor,
        positions: Tensor,
        num_logits: int,
        length: int,
        masks: list[Tensor],
        keys: list[Tensor],
        values: list[Tensor],
    ) -> Tensor:
        num_rows = len(tokens)
        if num_rows > self.ladder[-1]:
            answered = torch.arange(num_rows - num_logits, num_rows, device=tokens.device)
            at = torch.full((), length, device=tokens.device)
            return self._traced(tokens, positions, answered, at, masks, keys, values)
        captured = self._graph_for(self.room(num_rows), length, keys, values)
        captured.fill(tokens, positions, length, masks)
        captured.replay()
        return captured.logits[num_rows - num_logits : num_rows].clone()

    def _graph_for(self, padded: int, length: int, keys: list[Tensor], values: list[Tensor]) -> Captured:
        """One made before for this cache, as long as it has not grown, or a new one."""
        place = keys[0].data_ptr(), keys[0].shape[2]
        graphs = self._by_cache.setdefault(place, {})
        self._by_cache.move_to_end(place)
        if len(self._by_cache) > MOST_CACHES:
            self._by_cache.popitem(last=False)
        if padded not in graphs:
            graphs[padded] = self._captured(padded, length, keys, values)
        return graphs[padded]

    def _captured(self, padded: int, length: int, keys: list[Tensor], values: list[Tensor]) -> Captured:
        """Runs while it is captured, on rows behind the prefix of the cache."""
        device, dtype = keys[0].device, keys[0].dtype
        tokens, positions, answered = torch.arange(padded, device=device).repeat(3, 1).unbind()
        at = torch.full((), length, device=device)
        masks = [torch.zeros(group * padded, padded, dtype=dtype, device=device) for _, group in self.mask_keys]

        def run() -> Tensor:
            return self._traced(tokens, positions, answered, at, masks, keys, values)

        return Captured(tokens, positions, at, masks, *self._capture(run))
