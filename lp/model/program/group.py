"""The ranks that hold parts of one model, as its forward sees them, and what a model's modules ask of them.

While a model is recorded, nothing is sent: each call becomes one operation of the recording.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from lp.model.program.record import recorder


class SharedSlots(Protocol):
    """Memory in which the ranks of one host sum and gather, for native code.

    Rank p writes its part of round n to `slots + (2 * p + n % 2) * slot_bytes`, and then n to its word in `rounds`,
    `stride` bytes behind that of rank p - 1. So a rank is at most one round ahead of the others.
    """

    @property
    def slots(self) -> int: ...

    @property
    def slot_bytes(self) -> int: ...

    @property
    def rounds(self) -> int: ...

    @property
    def stride(self) -> int: ...


class RankGroup(Protocol):
    """The ranks that share a model. All of them make the same calls in the same order.

    shared_slots: None where native code cannot reach the other ranks by itself. round: the number of the last round in
    the slots, which native code counts on. Calls may raise what the loss of a rank raises.
    """

    rank: int
    num_ranks: int
    round: int

    @property
    def shared_slots(self) -> SharedSlots | None: ...

    def all_reduce(self, tensor: Tensor) -> Tensor:
        """The sum over the ranks, equal to the bit on all of them. May overwrite `tensor`."""
        ...

    def all_gather(self, tensor: Tensor) -> Tensor:
        """The tensors of all ranks, which have one shape, as [N, *shape]."""
        ...

    def agree(self, is_so: bool) -> bool:
        """Whether all ranks say that it is so. Waits for them."""
        ...

    def look(self, place: int, waited_s: float) -> None:
        """Called now and then by a rank that waits for another in the slots. Raises if the wait is in vain."""
        ...

    def count(self, num_collectives: int, bytes_sent: int, seconds: float) -> None:
        """Counts collectives that native code has carried out."""
        ...


def all_reduce(tensor: Tensor, group: RankGroup) -> Tensor:
    """The sum of a tensor over the ranks."""
    if (active := recorder()) is not None:
        return active.note("all_reduce", (tensor, group), tensor.shape, tensor.dtype)
    return group.all_reduce(tensor)


def all_gather(tensor: Tensor, sizes: tuple[int, ...], group: RankGroup) -> Tensor:
    """The tensors of all ranks side by side, along their last dimension. sizes: of each rank's."""
    if (active := recorder()) is not None:
        return active.note("all_gather", (tensor, sizes, group), (*tensor.shape[:-1], sum(sizes)), tensor.dtype)
    missing = max(sizes) - tensor.shape[-1]  # tensors that are gathered have one shape, so smaller ones are padded
    gathered = group.all_gather(torch.nn.functional.pad(tensor, (0, missing)) if missing else tensor)
    return torch.cat([part[..., :size] for part, size in zip(gathered, sizes, strict=True)], dim=-1)


def row_in_part(tokens: Tensor, first: int, size: int) -> Tensor:
    """The rows of tokens in a table that has those from `first` on; row `size` for tokens that it does not have."""
    if (active := recorder()) is not None:
        return active.note("row_in_part", (tokens, first, size), tokens.shape, tokens.dtype)
    own = tokens - first
    return torch.where((own >= 0) & (own < size), own, size)
