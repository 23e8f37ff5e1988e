"""Corrects what Triton's interpreter does otherwise than a GPU: bfloat16, products of tiles, masks of one number, and
helpers that are kernels.

Triton 3.9 keeps bfloat16 numbers as uint16: it multiplies their bits in products, and cuts off where it should round.
It has NumPy multiply tiles, and there a row's bits may depend on its place in the tile (on an AMD processor they do).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np


def to_bfloat16(values: np.ndarray) -> np.ndarray:
    """float32 -> the bits of the nearest bfloat16, as uint16."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    rounded = ((bits.astype(np.uint64) + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return np.where(np.isnan(values), np.uint16(0x7FC0), rounded)


def from_bfloat16(bits: np.ndarray) -> np.ndarray:
    return (bits.astype(np.uint32) << 16).view(np.float32)


@contextmanager
def mended() -> Iterator[None]:
    """Inside, the interpreter is as it should be."""
    import triton.language as tl
    from triton.runtime import interpreter

    builder: Any = interpreter.InterpreterBuilder
    standard = tl.standard
    changed: list[tuple[Any, str, Any]] = []

    def change(owner: Any, name: str, to: Any) -> None:
        changed.append((owner, name, getattr(owner, name)))
        setattr(owner, name, to)

    def reduction(combine: Any) -> Any:
        return lambda values, axis, keep_dims=False: tl.reduce(values, axis, combine, keep_dims=keep_dims)

    cast, convert, splat = builder.cast_impl, builder.create_fp_to_fp, builder.create_splat

    def cast_right(self: Any, source: Any, kind: Any) -> Any:
        pair = source.dtype.scalar, kind.scalar
        if pair == (tl.float32, tl.bfloat16):
            return interpreter.TensorHandle(to_bfloat16(source.data), tl.bfloat16)
        if pair == (tl.bfloat16, tl.float32):
            return interpreter.TensorHandle(from_bfloat16(source.data), tl.float32)
        return cast(self, source, kind)

    def convert_right(self: Any, source: Any, kind: Any, rounding: Any) -> Any:
        if tl.bfloat16 in (source.dtype.scalar, kind.scalar):
            return cast_right(self, source, kind)
        if source.dtype.scalar == tl.float32 and kind.scalar == tl.float16:
            return interpreter.TensorHandle(source.data.astype(np.float16), tl.float16)
        return convert(self, source, kind, rounding)

    def dot_right(self: Any, a: Any, b: Any, d: Any, *others: Any) -> Any:
        left, right = (
            (cast_right(self, one, tl.float32) if one.dtype.scalar == tl.bfloat16 else one).data for one in (a, b)
        )
        by_row = np.matmul(left[..., :, None, :], right[..., None, :, :], dtype=d.data.dtype)[..., 0, :]
        return interpreter.TensorHandle(by_row + d.data, d.dtype.scalar)

    def splat_right(self: Any, kind: Any, arg: Any) -> Any:
        made = splat(self, kind, arg)
        return interpreter.TensorHandle(made.data.astype(bool), tl.int1) if arg.data.dtype == bool else made

    try:
        for name, combine in (
            ("sum", standard._sum_combine), ("max", standard._elementwise_max), ("min", standard._elementwise_min),
        ):  # fmt: skip
            change(tl, name, reduction(combine))
        options = interpreter.interpreter_builder.options
        change(interpreter.interpreter_builder, "options", replace(options, sanitize_overflow=False))  # half the time
        change(builder, "cast_impl", cast_right)
        change(builder, "create_fp_to_fp", convert_right)
        change(builder, "create_dot", dot_right)
        change(builder, "create_splat", splat_right)
        yield
    finally:
        for owner, name, before in reversed(changed):
            setattr(owner, name, before)
