"""The forward as CUDA graphs, which a GPU replays without the host launching each kernel.

There is a graph for each of a few numbers of rows, the ladder, and a step is padded to the next of them. All graphs are
captured when the model is loaded. They read keys and values from the arena, where and how many they are from the
device, so they serve every sequence, however it grows, and the rows of many sequences in one replay.

Tokens are chosen by graphs of their own, a few kernels each, that are replayed behind the forward's: one for each kind
of choosing that a step's sequences need.

    R rows, P rows with padding, L rows whose logits are wanted, N of them of one sequence
"""

from __future__ import annotations

import logging
import time
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from lp.kv_cache.arena import Arena
from lp.model.errors import one_line
from lp.model.fast_forward import BeforeAttention, Choose, Choosing, Computed, FastForward, ForwardFailed, SequenceRows
from lp.model.gpu.prompts import PromptAttention
from lp.model.gpu.step_tensors import MOST_KINDS, ChoiceOfRows, StepBuffer, StepTensors
from lp.model.kernels import UnsupportedAttention
from lp.platform.hardware import upload

log = logging.getLogger("lookahead")

# The numbers of rows for which there are graphs. A step with more rows, as of a prompt, runs without a graph.
LADDER = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256)
# A prefix of so many tokens is long, if the step's sequences have so many rows each. Such steps have graphs of their
# own where their kernels differ.
LONG_PREFIX, ROWS_OF_LONG = 4096, 32

# Captures a function: returns one that replays it, and the tensor into which each replay writes the result. The second
# argument is the pool of memory that the graphs share.
Capture = Callable[[Callable[[], Tensor], Any], tuple[Callable[[], None], Tensor]]


def capture_on_gpu(run: Callable[[], Tensor], pool: Any) -> tuple[Callable[[], None], Tensor]:
    """Captures a function as a CUDA graph, after two warm-up runs, both on another stream, as torch asks for."""
    stream = _capture_stream(torch.cuda.current_device())
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            run()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    # Other threads may use the GPU meanwhile: NCCL's own, and the one that watches collectives.
    with torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
        result = run()
    return graph.replay, result


@cache
def _capture_stream(device: int) -> torch.cuda.Stream:
    """One stream for all captures on a device, as each stream on which cuBLAS runs has a workspace of its own."""
    return torch.cuda.Stream(device)


class ArenaForward(Protocol):
    """A forward over the arena that a graph can capture: all that changes from step to step is read from the device.

    is_invariant: as in FastForward. incoming_width, gives_logits: of a stage of a pipeline: the size of the hidden
    states that come in, None in the first stage, and whether this is the last one. output_width: of a row of what comes
    out. prompts: how their attention is computed outside of graphs; None if as that of all other rows. Sequences that
    are not there cost nothing, so that a graph for as many sequences as rows is as fast for one.
    """

    arena: Arena
    prompts: PromptAttention | None
    is_invariant: bool
    incoming_width: int | None
    gives_logits: bool
    output_width: int

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
        """Writes the rows to the arena.

        answered: the rows whose logits are needed: that many of the last ones, or those that int64 [L] names.
        before_attention: see FastForward.run_by_layer. incoming: float32 [R, D], see FastForward.run_stage. out: where
        the answer is written; None makes memory for it. sequences: the same step on the host, without padding, if it is
        not captured. is_long: whether prefixes are long, which changes only the time. Returns float32 [L, V], or
        hidden states [R, D] in all stages but the last.
        """
        ...

    def differs_after_long(self, num_rows: int) -> bool:
        """Whether a step of so many rows runs otherwise where prefixes are long."""
        ...


@dataclass
class CapturedChoice:
    """Captured choosing: replay, and what it writes, int64 [P, K]."""

    replay: Callable[[], None]
    tokens: Tensor


@dataclass
class Captured:
    """A captured forward of so many rows: what it reads, which must live as long, and what it writes, logits [P, V].

    replay_long: the same for long prefixes; None if it would not differ. incoming: float32 [P, D], hidden states that
    it reads. choices: by kind, what chooses tokens by these logits.
    """

    given: StepBuffer
    replay: Callable[[], None]
    logits: Tensor
    replay_long: Callable[[], None] | None = None
    incoming: Tensor | None = None
    choices: dict[str, CapturedChoice] = field(default_factory=dict)


class CapturedForward(FastForward):
    """For a GPU."""

    runs_by_layer = True
    chooses_tokens = True
    prefill_chunk = 2048

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
        # By name, the number and the function of each kind of choosing that was captured.
        self._kinds: dict[str, tuple[int, Choose]] = {}
        started, free = time.monotonic(), torch.cuda.mem_get_info(self._device)[0]
        log.info("capturing CUDA graphs of up to %d rows", ladder[-1])
        pool = self._pool = torch.cuda.graph_pool_handle()
        # What all graphs write, one at a time: logits, or the hidden states that a stage hands on.
        with torch.inference_mode(False):
            self._out = torch.empty(max(ladder), forward.output_width, device=self._device)
        # By rows. The largest is captured first: the others then fit in its memory.
        self._captured = {rows: self._capture_rows(rows, capture, pool) for rows in sorted(ladder, reverse=True)}
        taken, seconds = free - torch.cuda.mem_get_info(self._device)[0], time.monotonic() - started
        num_graphs = sum(1 + (one.replay_long is not None) for one in self._captured.values())
        log.info("captured %d CUDA graphs in %.1f s; they take %.2f GB", num_graphs, seconds, taken / 1e9)

    @property
    def prompts(self) -> PromptAttention | None:
        """See ArenaForward."""
        return self._forward.prompts

    @torch.inference_mode()
    def __call__(self, given: Sequence[SequenceRows]) -> Tensor:
        """See FastForward."""
        computed = self._compute(given)
        return computed.logits if computed.is_lasting else _gather(computed.logits, computed.rows)

    @torch.inference_mode()
    def run_stage(self, given: Sequence[SequenceRows], incoming: Tensor | None) -> Tensor:
        """See FastForward."""
        if self._forward.gives_logits:
            computed = self._compute(given, incoming=incoming)
            return computed.logits if computed.is_lasting else _gather(computed.logits, computed.rows)
        num_rows = sum(one.tree.num_rows for one in given)
        if num_rows > self.ladder[-1]:
            return self._run(self._fill(given), num_rows, incoming=incoming, sequences=given)
        return self._replay_rows(num_rows, given, (), incoming).logits[:num_rows].clone()

    @torch.inference_mode()
    def capture_choosing(self, kinds: Mapping[str, Choose]) -> None:
        """See FastForward. If one cannot be captured, tokens are chosen without graphs, which is said."""
        kinds = {kind: choose for kind, choose in kinds.items() if kind not in self._kinds}
        started, free = time.monotonic(), torch.cuda.mem_get_info(self._device)[0]
        for kind, choose in kinds.items():
            number = len(self._kinds)
            assert number < MOST_KINDS, "a step has no room for the choices of another kind"
            try:
                made = {key: self._capture_choice(one, choose, number) for key, one in self._captured.items()}
            except RuntimeError as error:
                log.warning("tokens are chosen (%s) without CUDA graphs, which is slower: %s", kind, one_line(error))
                continue
            self._kinds[kind] = number, choose
            for key, choice in made.items():
                self._captured[key].choices[kind] = choice
        if kinds:
            taken, seconds = free - torch.cuda.mem_get_info(self._device)[0], time.monotonic() - started
            log.info("captured CUDA graphs that choose tokens in %.1f s; they take %.2f GB", seconds, taken / 1e9)

    @torch.inference_mode()
    def compute(self, given: Sequence[SequenceRows], how: Sequence[Choosing | None]) -> Computed | None:
        """See FastForward."""
        chosen = [one.kind in self._kinds for one in how if one]
        return self._compute(given, how) if chosen and all(chosen) else None

    @torch.inference_mode()
    def run_by_layer(self, rows: SequenceRows, before_attention: BeforeAttention) -> None:
        """See FastForward. It runs without a graph, in which nothing could be done between two layers."""
        self._run(self._fill([rows]), 0, before_attention, sequences=[rows])

    def _compute(
        self, given: Sequence[SequenceRows], how: Sequence[Choosing | None] = (), incoming: Tensor | None = None
    ) -> Computed:
        """Runs a step by the graph for it, or without one if it has more rows than any."""
        num_rows, rows = 0, list[slice]()
        for one in given:
            num_rows += one.tree.num_rows
            rows.append(slice(num_rows - one.num_logits, num_rows))
        choices = [
            ChoiceOfRows(self._kinds[one.kind][0], own, one.choices) for own, one in zip(rows, how, strict=False) if one
        ]
        if num_rows > self.ladder[-1]:
            return self._compute_without_graph(given, rows, choices, incoming)
        captured = self._replay_rows(num_rows, given, choices, incoming)
        return Computed(captured.logits, rows, lambda kind: _replay(captured.choices[kind]), is_lasting=False)

    def _replay_rows(
        self, num_rows: int, given: Sequence[SequenceRows], choices: Sequence[ChoiceOfRows], incoming: Tensor | None
    ) -> Captured:
        """Replays the graph for so many rows, at most the ladder's last number of them."""
        captured = self._captured[self.ladder[bisect_left(self.ladder, num_rows)]]
        captured.given.fill(given, choices)
        if captured.incoming is not None:
            assert incoming is not None, "a stage of a pipeline, but for the first, gets hidden states"
            captured.incoming[:num_rows].copy_(incoming)
        if captured.replay_long is not None and _is_long(given):
            captured.replay_long()
        else:
            captured.replay()
        return captured

    def _compute_without_graph(
        self,
        given: Sequence[SequenceRows],
        rows: list[slice],
        choices: list[ChoiceOfRows],
        incoming: Tensor | None,
    ) -> Computed:
        """Its logits are those of the wanted rows alone, one sequence's behind the other's."""
        buffer = self._fill(given, choices)
        ends = np.cumsum([one.num_logits for one in given]).tolist()
        is_last = all(not one.num_logits for one in given[:-1])
        answered = (
            ends[-1]
            if is_last
            else upload(np.concatenate([np.arange(own.start, own.stop) for own in rows]), self._device)
        )
        logits = self._run(buffer, answered, incoming=incoming, sequences=given)

        def choose(kind: str) -> Tensor:
            number, chooser = self._kinds[kind]
            own = rows[-1] if isinstance(answered, int) else answered
            return chooser(logits, buffer.on_device.choices[number][own])

        compact = [slice(end - one.num_logits, end) for one, end in zip(given, ends, strict=True)]
        return Computed(logits, compact, choose, is_lasting=True)

    def _fill(self, given: Sequence[SequenceRows], choices: Sequence[ChoiceOfRows] = ()) -> StepBuffer:
        """The inputs of a step that runs without a graph."""
        num_rows = sum(one.tree.num_rows for one in given)
        buffer = StepBuffer(num_rows, len(given), self._max_length, self._device)
        buffer.fill(given, choices)
        return buffer

    def _capture_choice(self, captured: Captured, choose: Choose, number: int) -> CapturedChoice:
        choices = captured.given.on_device.choices[number]
        return CapturedChoice(*capture_on_gpu(lambda: choose(captured.logits, choices), self._pool))

    @torch.inference_mode()
    def _capture_rows(self, num_rows: int, capture: Capture, pool: Any) -> Captured:
        """Captures the forward of so many rows, which are all padding at first, written to no sequence's page."""
        given = StepBuffer(num_rows, num_rows, self._max_length, self._device)
        given.fill([])
        width, incoming = self._forward.incoming_width, None
        if width is not None:
            with torch.inference_mode(False):  # so that it may be written to without that mode
                incoming = torch.zeros(num_rows, width, device=self._device)
        try:
            out = self._out[:num_rows]
            replay, logits = capture(lambda: self._run(given, num_rows, incoming=incoming, out=out), pool)
            replay_long = None
            if self._max_length > LONG_PREFIX and self._forward.differs_after_long(num_rows):
                run = partial(self._run, given, num_rows, incoming=incoming, out=out, is_long=True)
                replay_long, _ = capture(run, pool)
        except (RuntimeError, UnsupportedAttention) as error:  # such as a model that reads a number on the host
            raise ForwardFailed(f"a CUDA graph cannot be captured: {one_line(error)}") from error
        return Captured(given, replay, logits, replay_long, incoming)

    def _run(
        self,
        given: StepBuffer,
        answered: int | Tensor,
        before_attention: BeforeAttention | None = None,
        incoming: Tensor | None = None,
        out: Tensor | None = None,
        sequences: Sequence[SequenceRows] = (),
        is_long: bool = False,
    ) -> Tensor:
        """Copies what the steps before have left to be copied, then runs the forward."""
        self._forward.arena.move_given(given.on_device.moves, given.on_device.move_starts)
        return self._forward(given.on_device, answered, before_attention, incoming, out, sequences, is_long)


def _is_long(given: Sequence[SequenceRows]) -> bool:
    """Whether the step's rows are mostly of sequences with a long prefix."""
    longest = max(one.cache.length for one in given)
    return longest >= LONG_PREFIX and sum(one.tree.num_rows for one in given) >= ROWS_OF_LONG * len(given)


def _replay(choice: CapturedChoice) -> Tensor:
    choice.replay()
    return choice.tokens


def _gather(logits: Tensor, rows: list[slice]) -> Tensor:
    """A copy of these rows, by one kernel."""
    runs: list[slice] = []
    for own in rows:
        if runs and runs[-1].stop == own.start:
            own = slice(runs.pop().start, own.stop)
        runs.append(own)
    return logits[runs[0]].clone() if len(runs) == 1 else torch.cat([logits[run] for run in runs])
