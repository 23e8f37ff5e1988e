"""Position-keyed Gumbel noise: a pure function of (seed, position, token id).

The arg max of log-probabilities plus this noise is a sample of their distribution (Gumbel-max). As the noise depends on
nothing else, the sample does not depend on the decoding method, the tree or the number of ranks (Daliri, Musco and
Suresh, "Coupling without Communication and Drafter-Invariant Speculative Decoding", 2024).

    R rows, V vocabulary, N tokens of a row
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor

from lp.platform.hardware import upload

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_MIX_A, _MIX_B = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
# Numbers that a CPU makes at once, which its caches hold.
_AT_ONCE = 1 << 16


def _to_signed(value: int) -> int:
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
    values.bitwise_xor_(_shift_right(values, 30)).mul_(_to_signed(_MIX_A))
    values.bitwise_xor_(_shift_right(values, 27)).mul_(_to_signed(_MIX_B))
    return values.bitwise_xor_(_shift_right(values, 31))


def mixed_seed(seed: int) -> int:
    """An int64 of which the keys of all positions are made."""
    return _to_signed(_mix(seed & _MASK))


def row_keys(seed: int, positions: Iterable[int]) -> np.ndarray:
    """[R] int64: what the noise of each row's position is made of, with a token's id."""
    hashed = mixed_seed(seed)
    return np.array([_to_signed(_mix((hashed + position * _GOLDEN) & _MASK)) for position in positions], np.int64)


def gumbel_of(keys_R1: Tensor, tokens_RN: Tensor) -> Tensor:
    """[R, N] float32 standard Gumbel noise of each row's tokens. keys_R1: int64 [R, 1], see `row_keys`."""
    counters = (tokens_RN + 1).mul_(_to_signed(_GOLDEN)) + keys_R1
    bits = _shift_right(_mix_in_place(counters), 12)  # 52: with 53, adding a half could round up to 1
    uniform = bits.double().add_(0.5).mul_(2.0**-52)
    return uniform.log_().neg_().log_().neg_().float()


def gumbel_at(seed: int, positions: Iterable[int], tokens_RN: Tensor) -> Tensor:
    """[R, N] float32 standard Gumbel noise of each row's tokens at the row's position."""
    return gumbel_of(upload(row_keys(seed, positions), tokens_RN.device)[:, None], tokens_RN)


def gumbel(seed: int, position: int, vocab_size: int, device: torch.device | str = "cpu") -> Tensor:
    """[V] float32 standard Gumbel noise of the whole vocabulary at one position."""
    return gumbel_at(seed, [position], torch.arange(vocab_size, device=device)[None])[0]


def stream_seed(seed: int, stream: int) -> int:
    """The seed of noise that is independent of that of `seed`, for each number of a stream from 1 on."""
    return _mix((mixed_seed(seed) + stream * _MIX_B) & _MASK) >> 1


def uniform_at(seed: int, position: int, place: int) -> float:
    """A number between 0 and 1, both excluded: a pure function of seed, position and place."""
    key = int(row_keys(seed, [position])[0])
    return ((_mix((key + (place + 1) * _GOLDEN) & _MASK) >> 12) + 0.5) * 2.0**-52


def noise_of_rows(keys_R1: Tensor, is_drawn_R1: Tensor, vocab_size: int) -> Tensor:
    """[R, V] float32 the noise of each row's position, zeros for rows that are not drawn. keys_R1: see `gumbel_of`."""
    tokens = torch.arange(vocab_size, device=keys_R1.device)[None]
    at_once = len(keys_R1) if keys_R1.device.type == "cuda" else max(1, _AT_ONCE // vocab_size)
    parts = [gumbel_of(keys, tokens) for keys in keys_R1.split(at_once)]
    return torch.cat(parts).masked_fill_(~is_drawn_R1, 0)
