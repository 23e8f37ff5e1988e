"""Position-keyed Gumbel noise: a pure function of (seed, position, token id).

The arg max of log-probabilities plus this noise is a sample of their distribution (Gumbel-max). As the noise depends on
nothing else, the sample does not depend on the decoding method, the tree or the number of ranks (Daliri, Musco and
Suresh, "Coupling without Communication and Drafter-Invariant Speculative Decoding", 2024).

    R rows, V vocabulary, N tokens of a row, S slots of a table
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor

from lp.hardware import upload

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_MIX_A, _MIX_B = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def _signed(value: int) -> int:
    """The int64 that has the bits of a 64-bit unsigned integer."""
    return value - (1 << 64) if value >> 63 else value


def _mix(value: int) -> int:
    """The finaliser of splitmix64 (Steele, Lea and Flood, 2014) on one number."""
    value = ((value ^ (value >> 30)) * _MIX_A) & _MASK
    value = ((value ^ (value >> 27)) * _MIX_B) & _MASK
    return value ^ (value >> 31)


def _shift_right(values: Tensor, bits: int) -> Tensor:
    """Shifts in zeros, while torch's own shift of int64 copies the sign."""
    return (values >> bits).bitwise_and_((1 << (64 - bits)) - 1)


def _mix_in_place(values: Tensor) -> Tensor:
    """`_mix` on a tensor of int64, which it overwrites."""
    values.bitwise_xor_(_shift_right(values, 30)).mul_(_signed(_MIX_A))
    values.bitwise_xor_(_shift_right(values, 27)).mul_(_signed(_MIX_B))
    return values.bitwise_xor_(_shift_right(values, 31))


def row_keys(seed: int, positions: Iterable[int]) -> np.ndarray:
    """[R] int64: what the noise of each row's position is made of, with a token's id."""
    hashed = _mix(seed & _MASK)
    return np.array([_signed(_mix((hashed + position * _GOLDEN) & _MASK)) for position in positions], np.int64)


def gumbel_at(seed: int, positions: Iterable[int], tokens_RN: Tensor) -> Tensor:
    """[R, N] float32 standard Gumbel noise of each row's tokens at the row's position."""
    keys_R = upload(row_keys(seed, positions), tokens_RN.device)
    counters = (tokens_RN + 1).mul_(_signed(_GOLDEN)).add_(keys_R[:, None])
    bits = _shift_right(_mix_in_place(counters), 12)  # 52: with 53, adding a half could round up to 1
    uniform = bits.double().add_(0.5).mul_(2.0**-52)
    return uniform.log_().neg_().log_().neg_().float()


def gumbel(seed: int, position: int, vocab_size: int, device: torch.device | str = "cpu") -> Tensor:
    """[V] float32 standard Gumbel noise of the whole vocabulary at one position."""
    return gumbel_at(seed, [position], torch.arange(vocab_size, device=device)[None])[0]


class NoiseTable:
    """One seed's noise for the whole vocabulary. A position's noise is made once and kept until it is forgotten."""

    def __init__(self, seed: int, vocab_size: int, device: torch.device | str = "cpu"):
        self.seed = seed
        # [S, V] a slot holds the noise of one position; slot 0 holds zeros, for greedy rows.
        self._values = torch.zeros(1, vocab_size, device=device)
        self._slots: dict[int, int] = {}
        self._free: list[int] = []

    def for_rows(self, positions: np.ndarray, greedy: np.ndarray) -> Tensor:
        """[R, V] the noise of each row's position, zeros for greedy rows. positions: [R] int64. greedy: [R] bool."""
        drawn = [
            None if is_greedy else position for position, is_greedy in zip(positions.tolist(), greedy, strict=True)
        ]
        self._fill(sorted({position for position in drawn if position is not None} - self._slots.keys()))
        slots = [0 if position is None else self._slots[position] for position in drawn]
        return self._values[upload(np.array(slots, np.int64), self._values.device)]

    def forget(self, before: int) -> None:
        """Frees the slots of all positions before this one, which a growing sequence needs no more."""
        for position in [position for position in self._slots if position < before]:
            self._free.append(self._slots.pop(position))

    def _fill(self, positions: list[int]) -> None:
        """Makes the noise of new positions: on a GPU of all at once, on a CPU one by one, which its caches hold."""
        while len(self._free) < len(positions):
            num_slots = len(self._values)
            self._values = torch.cat([self._values, torch.zeros_like(self._values)])
            self._free += range(num_slots, 2 * num_slots)
        slots = [self._free.pop() for _ in positions]
        self._slots |= zip(positions, slots, strict=True)
        device, vocab_size = self._values.device, self._values.shape[1]
        if device.type == "cuda" and positions:
            tokens = torch.arange(vocab_size, device=device).expand(len(positions), -1)
            self._values[upload(np.array(slots, np.int64), device)] = gumbel_at(self.seed, positions, tokens)
            return
        for position, slot in zip(positions, slots, strict=True):
            self._values[slot] = gumbel(self.seed, position, vocab_size, device)
