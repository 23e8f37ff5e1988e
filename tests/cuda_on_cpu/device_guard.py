"""A CUDA device guard for a torch without CUDA: views and indexing of tensors on "cuda" ask for one."""

from __future__ import annotations

import ctypes
import hashlib
import os
import subprocess
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch

from lp.platform.build import CannotBuild, find_compiler
from lp.platform.disk_cache import folder

SOURCE = """
#include <c10/core/impl/DeviceGuardImplInterface.h>
using namespace c10::impl;
static NoOpDeviceGuardImpl<c10::DeviceType::CUDA> guard;
extern "C" void install() {
    device_guard_impl_registry[static_cast<size_t>(c10::DeviceType::CUDA)].store(&guard);
}
"""


@cache
def install() -> None:
    """Registers the guard, compiled once for a version of torch. Where it cannot be, the test is skipped."""
    if torch.version.cuda:
        pytest.skip("this torch has CUDA, which has a device guard of its own; tests/gpu is for it")
    try:
        ctypes.CDLL(str(_library(find_compiler()))).install()
    except (CannotBuild, OSError, subprocess.CalledProcessError) as error:
        reason = getattr(error, "stderr", "") or error
        pytest.skip(f"no CUDA device guard can be compiled here: {' '.join(str(reason).split())[:300]}")


def _library(compiler: list[str]) -> Path:
    kept = folder("compiled")
    assert kept is not None, "tests set a folder for compiled code"
    digest = hashlib.sha256(f"{SOURCE} {torch.__version__} {torch.__file__}".encode()).hexdigest()[:20]
    library = kept / f"cuda-guard-{digest}.so"
    if not library.exists():
        root = Path(torch.__file__).parent
        with TemporaryDirectory(dir=kept) as temporary:
            (Path(temporary) / "guard.cpp").write_text(SOURCE)
            command = [
                *compiler,
                "-std=c++20",
                "-shared",
                "-fPIC",
                f"-I{root / 'include'}",
                "guard.cpp",
                "-o",
                "guard.so",
            ]
            command += [f"-L{root / 'lib'}", "-lc10"]
            subprocess.run(command, cwd=temporary, check=True, capture_output=True, text=True)
            os.replace(Path(temporary) / "guard.so", library)
    return library
