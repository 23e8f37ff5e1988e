"""The forward as CUDA graphs, which a GPU replays without the host launching each kernel.

There is a graph for each of a few numbers of rows, the ladder, and a step is padded to the next of them. A padding row
sees only itself, no other row sees it, and it is written to the cache behind the step's rows. A graph is bound to the
memory of one cache, so caches are kept and reused for later sequences. A cache that is dropped or grows takes its
graphs with it.

    R rows, P rows with padding, G query heads for each key/value head
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from weakref import ReferenceType, ref

import torch
from torch import Tensor

from lp.model.attention import MaskKey
from lp.model.causal import ForwardFailed
from lp.model.errors import one_line
from lp.model.fast.on_tensors import StepTensors
from lp.model.fast.traced import TracedForward
from lp.model.kernels import UnsupportedAttention

# The numbers of rows for which there are graphs. A step with more rows, as of a prompt, runs without a graph.
LADDER = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256)

# The most caches that have graphs at the same time: graphs take memory of their own.
MOST_CACHES = 8

# Captures a function: returns one that replays it, and the tensor into which each replay writes the result.
Capture = Callable[[Callable[[], Tensor]], tuple[Callable[[], None], Tensor]]


def capture_on_gpu(run: Callable[[], Tensor]) -> tuple[Callable[[], None], Tensor]:
    """Captures a function as a CUDA graph, after two warm-up runs on another stream, as torch asks for."""
    warm_up = torch.cuda.Stream()
    warm_up.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(warm_up):
        for _ in range(2):
            run()
    torch.cuda.current_stream().wait_stream(warm_up)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = run()
    return graph.replay, result


@dataclass
class Captured:
    """A captured forward, the tensors that it reads, and the one that it writes: logits [P, V]."""

    tokens: Tensor
    positions: Tensor
    length: Tensor
    masks: list[Tensor]
    replay: Callable[[], None]
    logits: Tensor

    def fill(self, tokens: Tensor, positions: Tensor, length: int, masks: list[Tensor]) -> None:
        """Copies a step's inputs, padded, to where the graph reads them."""
        num_rows, padded = len(tokens), len(self.tokens)
        self.tokens[:num_rows] = tokens
        self.positions[:num_rows] = positions
        self.positions[num_rows:] = length
        self.length.fill_(length)
        for own, mask in zip(self.masks, masks, strict=True):
            by_head = own.view(-1, padded, padded)
            by_head.fill_(float("-inf")).diagonal(dim1=1, dim2=2).zero_()
            by_head[:, :num_rows, :num_rows] = mask.view(-1, num_rows, num_rows)


@dataclass
class CacheGraphs:
    """The graphs of one cache, by their numbers of rows.

    first: the first of the cache's tensors; when it is gone, the graphs are given up. others: the rest of them, which
    must not go before the graphs that read and write them.
    """

    first: ReferenceType[Tensor]
    others: list[Tensor]
    by_rows: dict[int, Captured] = field(default_factory=dict)


class CapturedForward:
    """The TensorForward of a model without sliding windows on a GPU."""

    num_spare = 4

    def __init__(
        self,
        traced: TracedForward,
        mask_keys: list[MaskKey],
        ladder: Sequence[int] = LADDER,
        capture: Capture = capture_on_gpu,
    ):
        assert all(window is None for window, _ in mask_keys), "a graph cannot know where a window's keys lie"
        self.mask_keys = mask_keys
        self.ladder = ladder
        self._traced = traced
        self._capture = capture
        # By the identity of a cache's first tensor.
        self._by_cache: OrderedDict[int, CacheGraphs] = OrderedDict()

    def room(self, num_rows: int) -> int:
        """The next number of rows on the ladder, or `num_rows` itself if it is beyond the ladder."""
        rung = bisect_left(self.ladder, num_rows)
        return self.ladder[rung] if rung < len(self.ladder) else num_rows

    def __call__(self, step: StepTensors, num_logits: int) -> Tensor:
        num_rows, device = len(step.tokens), step.tokens.device
        if num_rows > self.ladder[-1]:
            answered = torch.arange(num_rows - num_logits, num_rows, device=device)
            at = torch.full((), step.length, device=device)
            return self._traced(step.tokens, step.positions, answered, at, step.masks, step.keys, step.values)
        captured = self._graph_for(self.room(num_rows), step.length, step.keys, step.values)
        captured.fill(step.tokens, step.positions, step.length, step.masks)
        captured.replay()
        return captured.logits[num_rows - num_logits : num_rows].clone()

    def _graph_for(self, padded: int, length: int, keys: list[Tensor], values: list[Tensor]) -> Captured:
        """The graph for this cache and number of rows, captured if there is none."""
        graphs = self._graphs_of(keys, values)
        if padded not in graphs:
            graphs[padded] = self._capture_graph(padded, length, keys, values)
        return graphs[padded]

    def _graphs_of(self, keys: list[Tensor], values: list[Tensor]) -> dict[int, Captured]:
        """The graphs of the cache with these tensors. Those of the cache that was used least recently may go for it."""
        place = id(keys[0])
        if place not in self._by_cache:
            first = ref(keys[0], lambda _: self._by_cache.pop(place, None))
            self._by_cache[place] = CacheGraphs(first, [*keys[1:], *values])
        self._by_cache.move_to_end(place)
        if len(self._by_cache) > MOST_CACHES:
            self._by_cache.popitem(last=False)
        return self._by_cache[place].by_rows

    def _capture_graph(self, padded: int, length: int, keys: list[Tensor], values: list[Tensor]) -> Captured:
        """Captures the forward. The warm-up runs write only behind the cache's prefix, so they do no harm."""
        device, dtype = keys[0].device, keys[0].dtype
        tokens, positions, answered = torch.arange(padded, device=device).repeat(3, 1).unbind()
        at = torch.full((), length, device=device)
        masks = [torch.zeros(group * padded, padded, dtype=dtype, device=device) for _, group in self.mask_keys]

        def run() -> Tensor:
            return self._traced(tokens, positions, answered, at, masks, keys, values)

        try:
            return Captured(tokens, positions, at, masks, *self._capture(run))
        except (RuntimeError, UnsupportedAttention) as error:  # such as a model that reads a number on the host
            raise ForwardFailed(f"a CUDA graph cannot be captured: {one_line(error)}") from error
