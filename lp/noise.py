"""Position-keyed Gumbel noise: a pure function of (seed, position, token id).

Adding it to log-probabilities and taking the arg max draws a sample (Gumbel-max). As it depends on nothing else, the
sample is the same whatever the decoding method, the tree or the number of ranks (Daliri, Musco and Suresh, "Coupling
without Communication and Drafter-Invariant Speculative Decoding", 2024).
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_MIX_A, _MIX_B = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


def _mix(value: int) -> int:
    """The finaliser of splitmix64 (Steele, Lea and Flood, 2014) on one number."""
    value = ((value ^ (value >> 30)) * _MIX_A) & _MASK
    value = ((value ^ (value >> 27)) * _MIX_B) & _MASK
    return value ^ (value >> 31)


def _shift_right(values: Tensor, bits: int) -> Tensor:
    """Logical shift; torch's own is arithmetic."""
    return (values >> bits) & ((1 << (64 - bits)) - 1)


def _mix_tensor(values: Tensor) -> Tensor:
    values = (values ^ _shift_right(values, 30)) * _signed(_MIX_A)
    values = (values ^ _shift_right(values, 27)) * _signed(_MIX_B)
    return values ^ _shift_right(values, 31)


def gumbel(seed: int, position: int, vocab_size: int, device: torch.device | str = "cpu") -> Tensor:
    """[V] float32 standard Gumbel noise of one position."""
    key = _mix((_mix(seed & _MASK) + position * _GOLDEN) & _MASK)
    counters = torch.arange(1, vocab_size + 1, dtype=torch.int64, device=device) * _signed(_GOLDEN)
    bits = _shift_right(_mix_tensor(counters + _signed(key)), 12)  # 52: with 53, adding a half could round up to 1
    uniform = (bits.double() + 0.5) * 2.0**-52
    return -(-uniform.log()).log().float()


class NoiseSource:
    """Noise of one seed. Each position's is made once and kept until the sequence has grown beyond it."""

    def __init__(self, seed: int, vocab_size: int, device: torch.device | str = "cpu"):
        self.seed = seed
        self.vocab_size = vocab_size
        self.device = device
        self._by_position: dict[int, Tensor] = {}

    def add_to(self, scores_RV: Tensor, positions: np.ndarray, quiet: np.ndarray | None = None) -> None:
        """Adds the noise of R positions to scores, in place, but not to rows that are quiet ([R] bool).

        Sequences only grow, so what lies before all of the positions is forgotten.
        """
        for known in [known for known in self._by_position if known < positions.min()]:
            del self._by_position[known]
        noisy = np.arange(len(positions)) if quiet is None else np.flatnonzero(~quiet)
        order = noisy[np.argsort(positions[noisy], kind="stable")]
        found, starts = np.unique(positions[order], return_index=True)
        rows = torch.from_numpy(order).to(scores_RV.device)
        for position, start, end in zip(found.tolist(), starts, [*starts[1:], len(order)], strict=True):
            scores_RV[rows[start:end]] += self._of(position)

    def _of(self, position: int) -> Tensor:
        if position not in self._by_position:
            self._by_position[position] = gumbel(self.seed, position, self.vocab_size, self.device)
        return self._by_position[position]
