"""What a step gives to a forward on a GPU: a few tensors in one piece of memory, which one copy fills.

The memory stays where it is, so a captured graph reads there whatever the next step brings. Rows of several sequences
may go into one step; each row sees its own sequence's prefix and those rows that it is told to see.

    R rows of B sequences, P pages of a sequence at most, M moves at most in G groups, N rows of one sequence
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from lp.kv_cache.arena import PagedCache
from lp.kv_cache.cache import PAGE, pages_of
from lp.kv_cache.moves import MOST_MOVES, NO_MOVES, NOWHERE, NUM_GROUPS, group_moves
from lp.model.fast_forward import SequenceRows
from lp.platform.hardware import upload_into
from lp.platform.library import address, library
from lp.tree import TokenTree

# Numbers of each row that say how its token is chosen. What they mean is in lp/sampling/choosers.py.
NUM_CHOICES = 4
# The most kinds of choosing that there are.
MOST_KINDS = 2
# Bytes to whose multiples every tensor is aligned, as Triton compiles other code for pointers that are not.
ALIGNMENT = 16


@dataclass(frozen=True)
class StepTensors:
    """The inputs of one step, on the device.

    tokens, positions: int64 [R]. slots: int64 [R], where each row's keys and values are written in the arena.
    moves, move_starts: int64 [2, M] and [G + 1], the slots from which and to which the arena copies rows of earlier
    steps before it writes this step's (`Arena.move_given`). choices: int64 [MOST_KINDS, R, NUM_CHOICES], by which each
    kind chooses the tokens of the rows that are its own; all is 0 for other rows. No forward reads it.
    sequence_of: int32 [R], each row's sequence, of 0 to B - 1; it ascends. lengths: int32 [B], cached tokens of each
    sequence. row_starts: int32 [B + 1], the first row of each sequence, then R; sequences that are not there have no
    rows and no cached tokens. visibility: bool [R, R], which rows each row sees. block_table: int32 [B, P], the pages
    of each sequence; what lies behind them means nothing.
    """

    tokens: Tensor
    positions: Tensor
    slots: Tensor
    moves: Tensor
    move_starts: Tensor
    choices: Tensor
    sequence_of: Tensor
    lengths: Tensor
    row_starts: Tensor
    visibility: Tensor
    block_table: Tensor


class ChoiceOfRows(NamedTuple):
    """How the tokens of some rows are chosen. kind: a number below MOST_KINDS. choices: int64 [N, NUM_CHOICES], side by
    side.
    """

    kind: int
    rows: slice
    choices: np.ndarray


class StepBuffer:
    """The memory of a step's inputs on the device, and a copy on the host. on_device: what a forward reads.

    A step with fewer rows is padded. A padding row sees only itself, no other row sees it, and it is written to the
    page of the arena that belongs to no sequence. It counts as a row of the last sequence, so its numbers are finite.
    """

    def __init__(self, num_rows: int, num_sequences: int, most_tokens: int, device: torch.device):
        """num_sequences: the most. most_tokens: the most cached tokens of a sequence."""
        long, short, one = np.dtype(np.int64), np.dtype(np.int32), np.dtype(np.bool_)
        rows, ends = (num_rows,), (num_sequences + 1,)
        most_moves, num_groups = (MOST_MOVES, 1) if num_sequences == 1 else (max(MOST_MOVES, num_rows), NUM_GROUPS)
        layout: dict[str, tuple[np.dtype, tuple[int, ...]]] = {
            "tokens": (long, rows), "positions": (long, rows), "slots": (long, rows),
            "moves": (long, (2, most_moves)), "move_starts": (long, (num_groups + 1,)),
            "choices": (long, (MOST_KINDS, num_rows, NUM_CHOICES)), "sequence_of": (short, rows),
            "lengths": (short, (num_sequences,)), "row_starts": (short, ends),
            "visibility": (one, (num_rows, num_rows)),
            "block_table": (short, (num_sequences, pages_of(most_tokens))),  # the last, as seldom all of it is copied
        }  # fmt: skip
        assert list(layout) == [field.name for field in fields(StepTensors)]
        sizes = [kind.itemsize * int(np.prod(shape)) for kind, shape in layout.values()]
        starts = np.cumsum([0, *(-(-size // ALIGNMENT) * ALIGNMENT for size in sizes)]).tolist()
        self._host = np.zeros(starts[-1], np.uint8)
        with torch.inference_mode(False):  # so that it may be written to without that mode
            self._memory = torch.zeros(starts[-1], dtype=torch.uint8, device=device)
        self.num_rows = num_rows
        self._table_start, self._bytes_of_table = starts[-2], short.itemsize * pages_of(most_tokens)
        self._used: dict[int, tuple[np.ndarray, Tensor]] = {}
        on_host, on_device = {}, {}
        for (name, (kind, shape)), start, size in zip(layout.items(), starts, sizes, strict=False):
            on_host[name] = self._host[start : start + size].view(kind).reshape(shape)
            dtype = torch.from_numpy(on_host[name]).dtype
            on_device[name] = self._memory[start : start + size].view(dtype).view(shape)
        self._parts: dict[str, np.ndarray] = on_host
        self.on_device = StepTensors(**on_device)
        # StepMemory in lp/platform/csrc/step.h, as numbers.
        self._most_moves = most_moves
        numbers = num_rows, num_sequences, most_moves, num_groups, pages_of(most_tokens), PAGE, MOST_KINDS, NUM_CHOICES
        self._layout = array("q", [*numbers, *map(address, on_host.values())])
        self._layout_at = self._layout.buffer_info()[0]

    def fill(self, given: Sequence[SequenceRows], choices: Sequence[ChoiceOfRows] = ()) -> None:
        """Gives the forward the rows of some sequences of the arena, one after the other. None of them is empty.

        The host does not wait for the copy, and may fill the buffer again at once: the copies are made in order.
        """
        if not self._laid_out_by_library(given, choices):
            self._lay_out(given, choices)
        upload_into(*(self._used.get(len(given)) or self._used_by(len(given))))

    def _used_by(self, num_sequences: int) -> tuple[np.ndarray, Tensor]:
        """The part of the memory that a step of so many sequences uses, on the host and on the device."""
        used = self._table_start + self._bytes_of_table * num_sequences
        return self._used.setdefault(num_sequences, (self._host[:used], self._memory[:used]))

    def _laid_out_by_library(self, given: Sequence[SequenceRows], choices: Sequence[ChoiceOfRows]) -> bool:
        """Has the library write everything. Returns False where there is none, or if there are too many moves."""
        if (native := library()) is None:
            return False
        # See `fill` in lp/platform/csrc/step.h.
        numbers: list[int] = []
        pages: list[int] = []
        moves: list[int] = []
        chosen: list[int] = []
        num_rows = 0
        caches = [cast(PagedCache, one.cache) for one in given]
        for (tree, *_), cache in zip(given, caches, strict=True):
            size, (sources, targets), own = tree.num_rows, cache.moves, cache.pages
            num_rows += size
            numbers += *tree.addresses, size, cache.length, len(own), len(sources)
            pages += own
            moves += sources
            moves += targets
        if len(moves) > 2 * self._most_moves:
            return False
        assert self.num_rows - PAGE <= num_rows <= self.num_rows, "padding rows have one page"
        for kind, rows, of_rows in choices:
            chosen += kind, rows.start, len(of_rows), native.array_address(of_rows)
        native.step_fill(self._layout_at, numbers + pages + moves + chosen, len(given), len(pages), len(choices))
        for cache in caches:
            cache.moves = NOWHERE
        return True

    def _lay_out(self, given: Sequence[SequenceRows], choices: Sequence[ChoiceOfRows]) -> None:
        """What the library does, in Python."""
        host: Any = self._parts
        host["choices"].fill(0)
        for one in choices:
            host["choices"][one.kind, one.rows] = one.choices
        caches = [cast(PagedCache, one.cache) for one in given]
        self._take_moves(caches)
        self._parts["visibility"].fill(False)
        self._pad(self._lay_rows([one.tree for one in given], caches) if given else 0, len(given))

    def _lay_rows(self, trees: Sequence[TokenTree], caches: Sequence[PagedCache]) -> int:
        """Writes what belongs to the rows and to the sequences. Returns the number of rows."""
        host = self._parts
        sizes, lengths = np.array([len(tree) for tree in trees]), np.array([cache.length for cache in caches])
        ends = np.cumsum(sizes)
        starts, end = ends - sizes, int(ends[-1])
        sequence_of, rows = np.repeat(np.arange(len(trees)), sizes), np.arange(end)
        host["tokens"][:end] = np.concatenate([tree.tokens for tree in trees])
        host["positions"][:end] = np.concatenate([tree.depths for tree in trees]) + lengths[sequence_of]
        host["sequence_of"][:end] = sequence_of
        host["lengths"][: len(trees)] = lengths
        host["row_starts"][: len(trees)] = starts
        self._lay_pages(caches, sequence_of, (lengths - starts)[sequence_of] + rows)
        visibility = host["visibility"]
        visibility[rows, rows] = True
        for tree, first in zip(trees, starts.tolist(), strict=True):
            if (size := len(tree)) > 1:
                visibility[first : first + size, first : first + size] = tree.visibility
        return end

    def _lay_pages(self, caches: Sequence[PagedCache], sequence_of: np.ndarray, places: np.ndarray) -> None:
        """Writes the sequences' pages, and the slots of rows by their places in their sequences."""
        host = self._parts
        pages = np.array([page for cache in caches for page in cache.pages])
        counts = np.array([len(cache.pages) for cache in caches])
        firsts = np.cumsum(counts) - counts
        width = min(int(counts.max()), host["block_table"].shape[1])
        in_table = np.minimum(firsts[:, None] + np.arange(width), len(pages) - 1)
        host["block_table"][: len(caches), :width] = pages[in_table]
        host["slots"][: len(places)] = pages[firsts[sequence_of] + places // PAGE] * PAGE + places % PAGE

    def _pad(self, first: int, num_sequences: int) -> None:
        """Makes all rows from the first on padding. num_sequences: those that have been laid out."""
        host = self._parts
        padding = np.arange(first, self.num_rows)
        assert len(padding) <= PAGE, "padding rows have one page"
        for name in ("tokens", "positions"):
            host[name][first:] = 0
        host["slots"][first:] = padding - first
        host["sequence_of"][first:] = max(0, num_sequences - 1)
        host["visibility"][padding, padding] = True
        host["row_starts"][max(1, num_sequences) :] = self.num_rows
        host["lengths"][num_sequences:] = 0

    def _take_moves(self, caches: Sequence[PagedCache]) -> None:
        """Takes what the caches have left to be copied. What exceeds the tensors is copied at once, and first."""
        host = self._parts
        taken = [cache.take_moves() for cache in caches]
        moves = np.concatenate([NO_MOVES, *taken], axis=1)
        beyond = max(0, moves.shape[1] - host["moves"].shape[1])
        if beyond:
            caches[0].arena.move(moves[:, :beyond])
        host["moves"].fill(0)  # kernels that copy all of them copy a slot that belongs to no sequence onto itself
        host["moves"][:, : moves.shape[1] - beyond] = moves[:, beyond:]
        starts = group_moves([one.shape[1] for one in taken], len(host["move_starts"]) - 1)
        host["move_starts"][:] = np.maximum(starts - beyond, 0)
