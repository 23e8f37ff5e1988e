"""Compiles C++ into a library, once for each source and machine, and keeps it on disk."""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import time
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from lp.cache.bound import trim
from lp.cache.entries import use
from lp.cache_files import checksum, locked

log = logging.getLogger("lookahead")

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
COMPILERS = ("g++", "c++", "clang++")


class CannotBuild(RuntimeError):
    """The library cannot be made here. The message says why, on one line."""


def build(text: str, folder: Path) -> ctypes.CDLL:
    """The library of a source, from the folder or compiled. Raises CannotBuild.

    A library is kept under a digest of its source, with a checksum of itself beside it, as loading one that is cut off
    could end the process. Of several processes that need the same one, one compiles it and the others wait.
    """
    kept = folder / f"native-{_digest(text)}"
    use(kept)
    library, expected = kept / "forward.so", kept / "sha256"
    try:
        with locked(kept, "compile the forward"):
            if kept.exists() and not (
                library.is_file() and expected.is_file() and checksum(library) == expected.read_text()
            ):
                log.warning("%s is corrupt; compiling anew", kept)
                shutil.rmtree(kept)
            if not kept.exists():
                _compile(text, kept)
                trim()
            return ctypes.CDLL(str(library))
    except OSError as error:
        raise CannotBuild(f"{kept} cannot be written or loaded: {error.strerror or error}") from error


def find_compiler() -> str:
    """The path of a C++ compiler. Raises CannotBuild if there is none."""
    compiler = next((found for name in COMPILERS if (found := shutil.which(name))), None)
    if compiler is None:
        raise CannotBuild("there is no C++ compiler; install g++")
    return compiler


def _compile(text: str, kept: Path) -> None:
    """Makes the folder `kept`, whole or not at all."""
    compiler = find_compiler()
    log.info(
        "compiling the forward, which takes some seconds, once for models of this shape (model.compile=off does not)"
    )
    started = time.monotonic()
    with TemporaryDirectory(dir=kept.parent) as temporary:
        source, library = Path(temporary) / "forward.cpp", Path(temporary) / "forward.so"
        source.write_text(text)
        command = [
            compiler,
            *FLAGS,
            *([WIDE] if platform.machine() == "x86_64" else []),
            "-shared",
            "-fPIC",
            f"-I{KERNELS}",
            str(source),
            "-o",
            str(library),
        ]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            reason = next((line for line in done.stderr.splitlines() if "error" in line), done.stderr)
            raise CannotBuild(f"{compiler} fails: {' '.join(reason.split())[:300]}")
        (Path(temporary) / "sha256").write_text(checksum(library))
        os.replace(temporary, kept)
        Path(temporary).mkdir()  # for its own removal
    log.info("compiled in %.1f s", time.monotonic() - started)


def _digest(text: str) -> str:
    """A digest of the source, the kernels, the flags and the machine."""
    digest = hashlib.sha256(text.encode())
    for header in sorted(KERNELS.glob("*.h")):
        digest.update(header.read_bytes())
    digest.update(repr((FLAGS, platform.machine(), _features())).encode())
    return digest.hexdigest()[:24]


@cache
def _features() -> str:
    """What the processor can do, as far as the system tells."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line for line in lines if line.startswith(("flags", "Features"))), platform.processor())
