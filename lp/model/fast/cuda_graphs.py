"""The forward as CUDA graphs, which a GPU replays without the host launching each kernel.

There is a graph for each of a few numbers of rows, the ladder, and a step is padded to the next of them. All graphs are
captured when the model is loaded. They read keys and values from the arena, where and how many they are from the
device, so they serve every sequence, however it grows.

Tokens are chosen by graphs of their own, a few kernels each, that are replayed behind the forward's.

    R rows, P rows with padding
"""

from __future__ import annotations

import logging
import time
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from lp.model.causal import Choose, Choosing, Chosen, ForwardFailed, SequenceRows
from lp.model.errors import one_line
from lp.model.fast.step_tensors import StepBuffer, StepTensors
from lp.model.kernels import UnsupportedAttention
from lp.model.kv.arena import Arena, PagedCache
from lp.model.kv_cache import KVCache
from lp.tree import TokenTree

log = logging.getLogger("lookahead")

# The numbers of rows for which there are graphs. A step with more rows, as of a prompt, runs without a graph.
LADDER = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256)

# Captures a function: returns one that replays it, and the tensor into which each replay writes the result. The second
# argument is the pool of memory that the graphs share.
Capture = Callable[[Callable[[], Tensor], Any], tuple[Callable[[], None], Tensor]]


def capture_on_gpu(run: Callable[[], Tensor], pool: Any) -> tuple[Callable[[], None], Tensor]:
    """Captures a function as a CUDA graph, after two warm-up runs on another stream, as torch asks for."""
    warm_up = torch.cuda.Stream()
    warm_up.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(warm_up):
        for _ in range(2):
            run()
    torch.cuda.current_stream().wait_stream(warm_up)
    graph = torch.cuda.CUDAGraph()
    # Other threads may use the GPU meanwhile: NCCL's own, and the one that watches collectives.
    with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
        result = run()
    return graph.replay, result


class ArenaForward(Protocol):
    """A forward over the arena that a graph can capture: all that changes from step to step is read from the device.

    is_invariant: as in FastForward.
    """

    arena: Arena
    is_invariant: bool

    def __call__(self, given: StepTensors, answered: Tensor) -> Tensor:
        """Writes the rows to the arena. answered: [N] the rows whose logits are needed, the last ones of the step.

        Returns float32 [N, V].
        """
        ...


@dataclass
class CapturedChoice:
    """Captured choosing: replay, and what it writes, int64 [P, K]."""

    replay: Callable[[], None]
    tokens: Tensor


@dataclass
class Captured:
    """A captured forward of so many rows: what it reads, which must live as long, and what it writes, logits [P, V].

    choices: by kind, what chooses tokens by these logits.
    """

    given: StepBuffer
    answered: Tensor
    replay: Callable[[], None]
    logits: Tensor
    choices: dict[str, CapturedChoice] = field(default_factory=dict)


class CapturedForward:
    """The FastForward of a model on a GPU, for one step at a time."""

    begins_caches = True
    owns_weights = False

    def __init__(
        self,
        forward: ArenaForward,
        max_length: int,
        ladder: Sequence[int] = LADDER,
        capture: Capture = capture_on_gpu,
    ):
        """Captures all graphs. max_length: the most tokens of a sequence. Raises ForwardFailed if one cannot be."""
        self.ladder = ladder
        self.is_invariant = forward.is_invariant
        self._forward = forward
        self._max_length = max_length
        self._device = forward.arena.device
        started, free = time.monotonic(), torch.cuda.mem_get_info(self._device)[0]
        log.info("capturing CUDA graphs of up to %d rows", ladder[-1])
        pool = self._pool = torch.cuda.graph_pool_handle()
        # The largest first: the others then find room in its memory.
        self._by_rows = {rows: self._capture_rows(rows, capture, pool) for rows in sorted(ladder, reverse=True)}
        taken = free - torch.cuda.mem_get_info(self._device)[0]
        log.info(
            "captured %d CUDA graphs in %.1f s; they take %.2f GB", len(ladder), time.monotonic() - started, taken / 1e9
        )

    @torch.inference_mode()
    def __call__(self, given: Sequence[SequenceRows]) -> Tensor:
        """See FastForward."""
        return torch.cat([self._one(*rows) for rows in given])

    def _one(self, tree: TokenTree, cache: KVCache, num_logits: int) -> Tensor:
        assert isinstance(cache, PagedCache), "graphs read the arena alone"
        num_rows = len(tree)
        rung = bisect_left(self.ladder, num_rows)
        if rung == len(self.ladder):
            given = StepBuffer(num_rows, 1, self._max_length, self._device)
            given.fill([(tree, cache)])
            return self._run(given, torch.arange(num_rows - num_logits, num_rows, device=self._device))
        captured = self._by_rows[self.ladder[rung]]
        captured.given.fill([(tree, cache)])
        captured.replay()
        return captured.logits[num_rows - num_logits : num_rows].clone()

    @torch.inference_mode()
    def capture_choosing(self, kinds: Mapping[str, Choose]) -> None:
        """See ChoosesTokens. If one cannot be captured, tokens are chosen without graphs, which is said."""
        kinds = {kind: choose for kind, choose in kinds.items() if kind not in self._by_rows[self.ladder[-1]].choices}
        started, free = time.monotonic(), torch.cuda.mem_get_info(self._device)[0]
        for kind, choose in kinds.items():
            try:
                made = {rows: self._capture_choice(one, choose) for rows, one in self._by_rows.items()}
            except RuntimeError as error:
                log.warning("tokens are chosen (%s) without CUDA graphs, which is slower: %s", kind, one_line(error))
                continue
            for rows, choice in made.items():
                self._by_rows[rows].choices[kind] = choice
        if kinds:
            taken, seconds = free - torch.cuda.mem_get_info(self._device)[0], time.monotonic() - started
            log.info("captured CUDA graphs that choose tokens in %.1f s; they take %.2f GB", seconds, taken / 1e9)

    @torch.inference_mode()
    def choose(self, given: Sequence[SequenceRows], how: Sequence[Choosing]) -> list[Chosen] | None:
        """See ChoosesTokens."""
        if len(given) > 1:
            return None
        ((tree, cache, _),), ((kind, choices, change),) = given, how
        assert isinstance(cache, PagedCache), "graphs read the arena alone"
        rung = bisect_left(self.ladder, len(tree))
        captured = self._by_rows[self.ladder[rung]] if rung < len(self.ladder) else None
        choice = captured.choices.get(kind) if captured else None
        if captured is None or choice is None:
            return None
        captured.given.fill([(tree, cache)], choices)
        captured.replay()
        rows = slice(len(tree) - len(choices), len(tree))
        if change:
            change(captured.logits[rows])
        choice.replay()
        return [Chosen(choice.tokens[rows], captured.logits[rows])]

    def _capture_choice(self, captured: Captured, choose: Choose) -> CapturedChoice:
        given = captured.given.on_device
        return CapturedChoice(*capture_on_gpu(lambda: choose(captured.logits, given.choices), self._pool))

    @torch.inference_mode()
    def _capture_rows(self, num_rows: int, capture: Capture, pool: Any) -> Captured:
        """Captures the forward of so many rows, which are all padding at first, written to no sequence's page."""
        given = StepBuffer(num_rows, 1, self._max_length, self._device)
        given.fill([])
        answered = torch.arange(num_rows, device=self._device)
        try:
            replay, logits = capture(lambda: self._run(given, answered), pool)
        except (RuntimeError, UnsupportedAttention) as error:  # such as a model that reads a number on the host
            raise ForwardFailed(f"a CUDA graph cannot be captured: {one_line(error)}") from error
        return Captured(given, answered, replay, logits)

    def _run(self, given: StepBuffer, answered: Tensor) -> Tensor:
        """Copies what the step before has left to be copied, then runs the forward."""
        self._forward.arena.move_given(given.on_device.moves, given.on_device.num_moves)
        return self._forward(given.on_device, answered)
