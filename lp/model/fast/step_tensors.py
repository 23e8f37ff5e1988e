"""What a step gives to a forward on a GPU: a few tensors in one piece of memory, which one copy fills.

The memory stays where it is, so a captured graph reads there whatever the next step brings. Rows of several sequences
may go into one step; each row sees its own sequence's prefix and those rows that it is told to see.

    R rows of B sequences, P pages of a sequence at most, M = MOST_MOVES
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lp.hardware import upload_into
from lp.model.kv.arena import PagedCache
from lp.model.kv.moves import MOST_MOVES
from lp.model.kv_cache import PAGE, pages_of
from lp.tree import TokenTree

# Numbers of each row that say how its token is chosen. What they mean is in lp/sampling/fused.py.
NUM_CHOICES = 4


@dataclass(frozen=True)
class StepTensors:
    """The inputs of one step, on the device.

    tokens, positions: int64 [R]. slots: int64 [R], where each row's keys and values are written in the arena. lengths:
    int32 [B], cached tokens of each sequence. row_starts: int32 [B + 1], the first row of each sequence, then R.
    key_starts: int32 [B + 1], the slot of each sequence's first token, for kernels that need consecutive pages; the
    last number means nothing. block_table: int32 [B, P], the pages of each sequence. visibility: bool [R, R], which
    rows each row sees.
    moves, num_moves: int64 [2, M] and [1], the slots from which and to which the arena copies rows of earlier steps
    before it writes this step's (`Arena.move_given`). choices: int64 [R, NUM_CHOICES], by which tokens are chosen; no
    forward reads them.
    """

    tokens: Tensor
    positions: Tensor
    slots: Tensor
    moves: Tensor
    num_moves: Tensor
    choices: Tensor
    lengths: Tensor
    row_starts: Tensor
    key_starts: Tensor
    block_table: Tensor
    visibility: Tensor


class StepBuffer:
    """The memory of a step's inputs on the device, and a copy on the host. on_device: what a forward reads.

    A step with fewer rows is padded. A padding row sees only itself, no other row sees it, and it is written to the
    page of the arena that belongs to no sequence. It counts as a row of the last sequence, so its numbers are finite.
    """

    def __init__(self, num_rows: int, num_sequences: int, most_tokens: int, device: torch.device):
        """most_tokens: the most cached tokens of a sequence."""
        assert num_rows <= PAGE or num_sequences == 1, "padding rows have one page"
        long, short, one = np.dtype(np.int64), np.dtype(np.int32), np.dtype(np.bool_)
        rows, ends = (num_rows,), (num_sequences + 1,)
        layout: dict[str, tuple[np.dtype, tuple[int, ...]]] = {  # the widest numbers first, so that all are aligned
            "tokens": (long, rows), "positions": (long, rows), "slots": (long, rows),
            "moves": (long, (2, MOST_MOVES)), "num_moves": (long, (1,)), "choices": (long, (num_rows, NUM_CHOICES)),
            "lengths": (short, (num_sequences,)), "row_starts": (short, ends), "key_starts": (short, ends),
            "block_table": (short, (num_sequences, pages_of(most_tokens))), "visibility": (one, (num_rows, num_rows)),
        }  # fmt: skip
        assert list(layout) == [field.name for field in fields(StepTensors)]
        sizes = [kind.itemsize * int(np.prod(shape)) for kind, shape in layout.values()]
        starts = np.cumsum([0, *sizes]).tolist()
        self._host = np.zeros(starts[-1], np.uint8)
        self._memory = torch.zeros(starts[-1], dtype=torch.uint8, device=device)
        on_host, on_device = {}, {}
        for (name, (kind, shape)), start, size in zip(layout.items(), starts, sizes, strict=False):
            on_host[name] = self._host[start : start + size].view(kind).reshape(shape)
            dtype = torch.from_numpy(on_host[name]).dtype
            on_device[name] = self._memory[start : start + size].view(dtype).view(shape)
        self._parts: dict[str, np.ndarray] = on_host
        self.on_device = StepTensors(**on_device)

    @property
    def num_rows(self) -> int:
        return len(self._parts["tokens"])

    def fill(self, sequences: Sequence[tuple[TokenTree, PagedCache]], choices: np.ndarray | None = None) -> None:
        """Gives the forward the rows of these sequences, one sequence after the other.

        choices: int64 [N, NUM_CHOICES] of the last N rows; of all others they are 0. The host does not wait for the
        copy, and may fill the buffer again at once: the copies are made in order.
        """
        host: Any = self._parts
        self._take_moves([cache for _, cache in sequences])
        host["visibility"].fill(False)
        first = 0
        for number, (tree, cache) in enumerate(sequences):
            end = first + len(tree)
            host["tokens"][first:end] = tree.tokens
            host["positions"][first:end] = tree.depths + cache.length
            host["slots"][first:end] = cache.slots(np.arange(cache.length, cache.length + len(tree)))
            host["visibility"][first:end, first:end] = tree.visibility
            host["lengths"][number] = cache.length
            host["row_starts"][number] = first
            host["key_starts"][number] = cache.pages[0] * PAGE
            pages = cache.pages[: host["block_table"].shape[1]]
            host["block_table"][number, : len(pages)] = pages
            first = end
        host["choices"].fill(0)
        if choices is not None:
            host["choices"][first - len(choices) : first] = choices
        padding = np.arange(first, self.num_rows)
        for name in ("tokens", "positions"):
            host[name][first:] = 0
        host["slots"][first:] = padding - first
        host["visibility"][padding, padding] = True
        host["row_starts"][max(1, len(sequences)) :] = self.num_rows
        host["lengths"][len(sequences) :] = 0
        upload_into(self._host, self._memory)

    def _take_moves(self, caches: Sequence[PagedCache]) -> None:
        """Takes what the caches have left to be copied. What there is no room for is copied at once."""
        host, count = self._parts, 0
        host["moves"].fill(0)  # kernels that copy all of them copy a slot that belongs to no sequence onto itself
        for cache in caches:
            if count + cache.num_moves > MOST_MOVES:
                cache.settle()
            end = count + cache.num_moves
            host["moves"][:, count:end] = cache.take_moves()
            count = end
        host["num_moves"][:] = count
