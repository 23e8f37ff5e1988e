"""How the C++ of a native forward is compiled (lp/platform/build.py)."""

from __future__ import annotations

import ctypes
import platform
from dataclasses import dataclass
from pathlib import Path

from lp.model.cpu.source import Source
from lp.platform.build import Source as LibrarySource
from lp.platform.build import build as build_libraries
from lp.platform.build import load

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


@dataclass(frozen=True)
class Libraries:
    """What the sources of a forward were compiled to.

    kernels: the function that runs a program, and those that pack weights. functions: of the model's stages.
    """

    kernels: ctypes.CDLL
    functions: ctypes.CDLL

    @property
    def functions_at(self) -> int:
        """The address of the array of functions."""
        return ctypes.addressof(ctypes.c_void_p.in_dll(self.functions, "functions"))


def build(source: Source, folder: Path) -> Libraries:
    """The libraries of a forward's sources, from the folder or compiled. Raises CannotBuild."""
    flags = (*FLAGS, *([WIDE] if platform.machine() == "x86_64" else []))
    texts = {"forward": source.kernels, "functions": source.functions}
    sources = [LibrarySource(name, "native", text, KERNELS, flags) for name, text in texts.items()]
    return Libraries(*map(load, build_libraries(sources, folder, REMARK)))
