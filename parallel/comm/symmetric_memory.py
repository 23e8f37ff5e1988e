"""Sums over ranks through torch's symmetric memory: each GPU of a host reads the others' buffers in one kernel.

For the small tensors of a decoding step this takes a fraction of the time of NCCL's all-reduce. It is tried when the
ranks meet, step by step and with all of them, as torch calls its interface an alpha version and not every pair of GPUs
can read each other's memory. Its kernels wait for the other ranks without end, so they are for graphs alone: there the
queue cannot fill up behind them, and the host waits by looking.

    N ranks, B bytes of the buffer
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.distributed import PrefixStore, Store

# Numbers of ranks for which the kernels add in one order on all ranks, so that sums are equal to the bit.
RANKS = (2, 4, 8)
DTYPES = (torch.bfloat16, torch.float32)
# Up to here every rank reads everything; above, every rank sums its share and hands it out. PyTorch's compiler draws
# the line at the same place.
ONE_SHOT_BYTES = 128 << 10
# Above this, NCCL is as fast.
BUFFER_BYTES = 4 << 20
# Loads are of this many bytes.
ALIGNMENT = 16

# Says whether all ranks say so; see Collectives.agree.
Agree = Callable[[bool], bool]


class SymmetricSum:
    """The buffer of this rank, which the others can read."""

    def __init__(self, buffer: Tensor, group: str, operators: Any):
        """buffer: uint8 [B]. group: the name by which torch knows the ranks. operators: as torch.ops.symm_mem."""
        self._buffer = buffer
        self._group = group
        self._operators = operators

    def serves(self, tensor: Tensor) -> bool:
        """Whether a tensor can be summed so."""
        num_bytes = tensor.numel() * tensor.itemsize
        return tensor.dtype in DTYPES and 0 < num_bytes <= BUFFER_BYTES and num_bytes % ALIGNMENT == 0

    def add_up(self, tensor: Tensor) -> Tensor:
        """The sum over the ranks. tensor: contiguous; `serves` it. All ranks call this with the same shape."""
        shared = self._buffer[: tensor.numel() * tensor.itemsize].view(tensor.dtype)
        shared.copy_(tensor.view(-1))
        if tensor.numel() * tensor.itemsize <= ONE_SHOT_BYTES:
            return self._operators.one_shot_all_reduce(shared, "sum", self._group).view(tensor.shape)
        self._operators.two_shot_all_reduce_(shared, "sum", self._group)
        return shared.clone().view(tensor.shape)


def try_symmetric_memory(
    store: Store, rank: int, num_ranks: int, device: torch.device, agree: Agree
) -> tuple[SymmetricSum | None, str]:
    """A SymmetricSum, and why there is none. All ranks call this together; all of them get one, or none does."""
    reasons: list[str] = []

    def all_can(attempt: Callable[[], Any]) -> Any:
        """What the attempt returns, or None if it fails on a rank."""
        made = None
        if not reasons:
            try:
                made = attempt()
            except Exception as error:  # an alpha version may raise anything
                reasons.append(" ".join(str(error).split())[:200] or type(error).__name__)
        if not agree(not reasons) and not reasons:
            reasons.append("another rank cannot")
        return None if reasons else made

    group = f"lookahead_parallel/{device.index}"
    buffer = all_can(lambda: _allocate(store, group, rank, num_ranks, device))
    all_can(lambda: _meet(buffer, group))
    found = all_can(lambda: SymmetricSum(buffer, group, _operators()))
    for num_bytes in (ONE_SHOT_BYTES, 2 * ONE_SHOT_BYTES):
        # Their kernels would wait for ever for a rank that has failed before.
        if reasons:
            break
        all_can(lambda num_bytes=num_bytes: _check(found, rank, num_ranks, device, num_bytes))
    return (None, reasons[0]) if reasons else (found, "")


def _allocate(store: Store, group: str, rank: int, num_ranks: int, device: torch.device) -> Tensor:
    if num_ranks not in RANKS:
        raise ValueError(
            f"its sums are equal on all ranks for {', '.join(map(str, RANKS))} ranks, and these are {num_ranks}"
        )
    memory = _symmetric_memory()
    memory.set_group_info(group, rank, num_ranks, PrefixStore("symmetric_memory", store))
    return memory.empty_strided_p2p((BUFFER_BYTES,), (1,), torch.uint8, device, group)


def _meet(buffer: Tensor, group: str) -> None:
    """Makes the ranks' buffers known to each other."""
    _symmetric_memory().rendezvous(buffer, group)


def _check(found: SymmetricSum, rank: int, num_ranks: int, device: torch.device, num_bytes: int) -> None:
    """Sums numbers whose sum is known. Raises ValueError if it is another."""
    ones = torch.ones(num_bytes // 2, dtype=torch.bfloat16, device=device)
    summed = found.add_up(ones * (rank + 1))
    if not bool((summed == num_ranks * (num_ranks + 1) // 2).all()):
        raise ValueError("its sums are wrong here")


def _operators() -> Any:
    return torch.ops.symm_mem


def _symmetric_memory() -> Any:
    """Torch's class, which takes ranks that are no group of torch.distributed. Raises ImportError."""
    from torch._C._distributed_c10d import _SymmetricMemory

    return _SymmetricMemory
