"""The formulas of operations that compute each number by itself."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from lp.model.program.record import Inexpressible

# Whether two numbers are the same: 1 or 0.
SAME = "(1.0f * ({0} == {1}))"
# Operations that compute each number by itself: C, with {0} and {1} for their
# first two arguments, numbers or tensors. All others are given by name.
MAPS: dict[str, Callable[..., str]] = {
    "neg": lambda: "-{0}",
    "rsqrt": lambda: "1.0f / sqrtf({0})",
    "sqrt": lambda: "sqrtf({0})",
    "exp": lambda: "exponential({0})",
    "expm1": lambda: "expm1f({0})",
    "sin": lambda: "sinf({0})",
    "cos": lambda: "cosf({0})",
    "tanh": lambda: "hyperbolic_tangent({0})",
    "sigmoid": lambda: "1.0f / (1.0f + exponential(-{0}))",
    "ones_like": lambda **_: "1.0f",
    "eq": lambda: SAME,
    "bitwise_not": lambda: "1.0f - {0}",  # of truth values, which are 1 or 0
    "bitwise_or": lambda: "larger({0}, {1})",
    "minimum": lambda: "smaller({0}, {1})",
    "floor": lambda: "floorf({0})",
    "log": lambda: "logf({0})",
    "log1p": lambda: "log1pf({0})",
    "gt": lambda: "(1.0f * ({0} > {1}))",
    "softplus": lambda: "({0} > 20.0f ? {0} : log1pf(exponential({0})))",
    "silu": lambda: "{0} / (1.0f + exponential(-{0}))",
    "relu": lambda: "({0} > 0.0f ? {0} : 0.0f)",
    "reciprocal": lambda: "1.0f / {0}",
    "clone": lambda **_: "{0}",
    "_to_copy": lambda **_: "{0}",
    "gelu": lambda approximate="none": "gelu_by_tanh({0})" if approximate == "tanh" else "gelu({0})",
    "add": lambda alpha=1: "{0} + {1}" if alpha == 1 else f"{{0}} + {{1}} * {literal(alpha)}",
    "rsub": lambda alpha=1: "{1} - {0}" if alpha == 1 else f"{{1}} - {{0}} * {literal(alpha)}",
    "sub": lambda alpha=1: "{0} - {1}" if alpha == 1 else f"{{0}} - {{1}} * {literal(alpha)}",
    "mul": lambda: "{0} * {1}",
    "div": lambda: "{0} / {1}",
}


def literal(number: float) -> str:
    """A number as C reads it. Raises Inexpressible for one that is not finite."""
    if not math.isfinite(number):
        raise Inexpressible(f"the number {number}")
    is_exact = torch.tensor(float(number), dtype=torch.float32).item() == number
    return f"{float(number).hex()}f" if is_exact else f"(float){float(number)!r}"


def power(exponent: object) -> str:
    """The formula of a power. Raises Inexpressible for one that is not made of products and roots."""
    powers = {2: "{0} * {0}", 3: "{0} * {0} * {0}", 0.5: "sqrtf({0})", -0.5: "1.0f / sqrtf({0})", -1: "1.0f / {0}"}
    if not isinstance(exponent, int | float) or exponent not in powers:
        raise Inexpressible(f"the power {exponent}")
    return powers[exponent]
