"""How the C++ of a native forward is compiled (lp/platform/build.py)."""

from __future__ import annotations

import ctypes
import platform
from pathlib import Path

from lp.platform.build import Source, load
from lp.platform.build import build as build_library

KERNELS = Path(__file__).parent / "kernels"
FLAGS = (
    "-std=c++17",
    "-O3",
    "-march=native",
    "-fopenmp",
    "-ffp-contract=fast",
    "-fno-math-errno",
    "-fno-trapping-math",
)
# What only some compilers know.
WIDE = "-mprefer-vector-width=512"
REMARK = "once for models of this shape (model.compile=off does not)"


def build(text: str, folder: Path) -> ctypes.CDLL:
    """The library of a forward's source, from the folder or compiled. Raises CannotBuild."""
    flags = (*FLAGS, *([WIDE] if platform.machine() == "x86_64" else []))
    return load(build_library(Source("forward", "native", text, KERNELS, flags, REMARK), folder))
