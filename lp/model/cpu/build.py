"""How the C++ of a native forward is compiled (lp/platform/build.py)."""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lp.model.cpu.quantized import kernel_format
from lp.model.cpu.source import Source, write_products
from lp.model.quantization.weight import WeightFormat
from lp.platform.build import Source as LibrarySource
from lp.platform.build import begin as begin_libraries
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
# Of a format of quantised weights: what QuantizedKernels of kernels/run.h consists of.
PRODUCTS = ("product", "expert_product", "screened_product")
PRODUCTS_LIBRARY = "products"
REMARK = "once for models of this shape (model.compile=off does not)"


@dataclass(frozen=True)
class Libraries:
    """What the sources of a forward were compiled to.

    kernels: the function that runs a program. functions: of the model's stages. formats: of quantised weights, each
    with its products and the function that packs. products: their addresses, int64 [formats, 3]: QuantizedKernels of
    kernels/run.h.
    """

    kernels: ctypes.CDLL
    functions: ctypes.CDLL
    formats: dict[WeightFormat, ctypes.CDLL]
    products: np.ndarray

    @property
    def functions_at(self) -> int:
        """The address of the array of functions."""
        return ctypes.addressof(ctypes.c_void_p.in_dll(self.functions, "functions"))


def build(source: Source, folder: Path) -> Libraries:
    """The libraries of a forward's sources, from the folder or compiled. Raises CannotBuild."""
    texts = [("forward", source.kernels), *((PRODUCTS_LIBRARY, text) for text in source.formats.values())]
    texts.append(("functions", source.functions))  # the least work for a compiler comes last
    sources = [_library(name, text) for name, text in texts]
    kernels, *found, functions = map(load, build_libraries(sources, folder, REMARK))
    formats = dict(zip(source.formats, found, strict=True))
    products = np.zeros((len(found), len(PRODUCTS)), np.int64)
    for number, (format, one) in enumerate(formats.items()):
        names = PRODUCTS if format.is_split else PRODUCTS[:2]
        products[number, : len(names)] = [_address_of(one[name]) for name in names]
    return Libraries(kernels, functions, formats, products)


def begin(formats: Iterable[WeightFormat], dtype: torch.dtype, folder: Path) -> None:
    """Starts to compile the kernels for formats of quantised weights that are missing, while the caller goes on."""
    kinds = dict.fromkeys(map(kernel_format, formats))
    begin_libraries([_library(PRODUCTS_LIBRARY, write_products(kind, dtype)) for kind in kinds], folder)


def _library(name: str, text: str) -> LibrarySource:
    flags = (*FLAGS, *([WIDE] if platform.machine() == "x86_64" else []))
    return LibrarySource(name, "native", text, KERNELS, flags)


def _address_of(function: Any) -> int:
    """The address of a library's function."""
    return ctypes.cast(function, ctypes.c_void_p).value or 0
