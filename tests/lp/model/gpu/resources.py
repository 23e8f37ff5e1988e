"""Compiles Triton kernels for GPUs that are not there, and reads what a program of them takes."""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from lp.platform.build import missing_triton

ARCHITECTURES = (80, 90, 100)
# Bytes of shared memory that a program may have.
SHARED_MEMORY = {80: 163 * 1024, 90: 227 * 1024, 100: 227 * 1024}


@dataclass(frozen=True)
class Resources:
    """registers: of a thread. spilled: bytes of a thread's registers kept in memory. shared: bytes of a program."""

    registers: int
    spilled: int
    shared: int


def compile_for(
    architecture: int, kernel: Any, types: dict[str, str], constants: dict[str, Any], num_warps: int, num_stages: int
) -> Resources:
    """types: of the arguments, as Triton writes them. Pointers and strides are multiples of 16, as models' are."""
    if missing := missing_triton():
        pytest.skip(missing)
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    names = list(kernel.arg_names)
    signature = {name: types.get(name, "constexpr") for name in names}
    aligned = {
        (number,): [["tt.divisibility", 16]]
        for number, name in enumerate(names)
        if "*" in signature[name] or (name.endswith("_stride") and signature[name] == "i32")
    }
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants, attrs=aligned)
    options = {"num_warps": num_warps, "num_stages": num_stages}
    made = triton.compile(source, target=GPUTarget("cuda", architecture, 32), options=options)
    found = _usage(made.asm["cubin"])
    return Resources(found["REG"], found["STACK"] + found["LOCAL"], made.metadata.shared)


def _usage(cubin: bytes) -> dict[str, int]:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(cubin)
        text = subprocess.run([_cuobjdump(), "--dump-resource-usage", str(path)], capture_output=True, text=True)
    return {name: int(number) for name, number in re.findall(r"\b(REG|STACK|LOCAL):(\d+)", text.stdout)}


@cache
def _cuobjdump() -> str:
    import triton

    found = next(Path(triton.__file__).parent.glob("backends/nvidia/bin/cuobjdump"), None)
    if found is None:
        pytest.skip("this build of Triton has no cuobjdump")
    return str(found)
