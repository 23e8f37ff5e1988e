"""A program's formulas, which are written in C, as Triton's Python."""

from __future__ import annotations

import re
from functools import cache

from lp.model.program.record import Inexpressible

# C writes a number as 1.0f, as 0x1.8p+1f or, where float32 rounds it, as (float)0.1.
_NUMBER = re.compile(r"\(float\)(-?[\d.]+(?:e[+-]?\d+)?)|(-?0x[\da-f.]+p[+-]?\d+|\d+\.\d*)f")
_FUNCTIONS = {
    "sqrtf": "tl.sqrt", "exponential": "tl.exp", "sinf": "tl.sin", "cosf": "tl.cos", "larger": "tl.maximum",
    "smaller": "tl.minimum",
}  # fmt: skip
# Functions that Triton lacks, written out. They are always a formula by themselves.
_TANH = "1.0 - 2.0 / (tl.exp(2.0 * {}) + 1.0)"
_WHOLE = {
    "hyperbolic_tangent({0})": _TANH.format("{0}"),
    "gelu({0})": "0.5 * {0} * (1.0 + tl.erf({0} * 0.7071067811865476))",
    "gelu_by_tanh({0})": f"0.5 * {{0}} * (1.0 + {_TANH.format('0.7978845608 * ({0} + 0.044715 * {0} * {0} * {0})')})",
    "({0} > 0.0f ? {0} : 0.0f)": "tl.maximum({0}, 0.0)",
}


@cache
def in_triton(formula: str) -> str:
    """Raises Inexpressible for a function that is not known."""
    if formula in _WHOLE:
        return _WHOLE[formula]
    text = _NUMBER.sub(_number, formula)
    for name in set(re.findall(r"[a-z_]\w*(?=\()", text)):
        if name not in _FUNCTIONS:
            raise Inexpressible(f"the function {name} on a GPU")
        text = re.sub(rf"\b{name}\(", f"{_FUNCTIONS[name]}(", text)
    if "?" in text:
        raise Inexpressible(f"the formula {formula} on a GPU")
    return text


def _number(found: re.Match[str]) -> str:
    decimal, other = found.groups()
    if decimal is not None:
        return repr(float(decimal))
    return repr(float.fromhex(other) if "0x" in other else float(other))
