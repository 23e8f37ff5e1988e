"""Makes Triton kernels of texts, and starts them.

Triton belongs to torch's builds for CUDA. It is imported when it is first needed, as other machines may not have it.
"""

from __future__ import annotations

import hashlib
import importlib.util
import linecache
from functools import cache
from typing import Any


def missing_triton() -> str:
    """Why there are no kernels here; empty if there can be."""
    return "" if importlib.util.find_spec("triton") else "triton is not installed (pip install triton)"


@cache
def compiled(text: str) -> Any:
    """The kernel `stage` of a text. Triton compiles it when it is first started, and keeps it on disk."""
    import triton
    import triton.language as tl

    name = f"<fused stage {hashlib.sha256(text.encode()).hexdigest()[:16]}>"
    lines = text.splitlines(keepends=True)
    linecache.cache[name] = len(text), None, lines, name  # where Triton reads the source of a function
    namespace: dict[str, Any] = {"tl": tl, "__name__": __name__}
    exec(compile(text, name, "exec"), namespace)
    return triton.jit(namespace["stage"])


def start(
    kernel: Any, grid: tuple[int, ...], *arguments: Any, num_warps: int = 4, num_stages: int = 2, **constants: Any
) -> None:
    """Starts a kernel on the current stream: `grid` programs of `num_warps` warps."""
    kernel[grid](*arguments, num_warps=num_warps, num_stages=num_stages, **constants)
