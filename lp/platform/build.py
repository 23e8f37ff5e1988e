"""Compiles C++ into a library, once for each source and machine, and keeps it on disk. Makes and starts Triton kernels.

Triton belongs to torch's builds for CUDA. It is imported when it is first needed, as other machines may not have it.
"""

from __future__ import annotations

import ctypes
import errno
import hashlib
import importlib.util
import linecache
import logging
import os
import platform
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock, Thread, main_thread
from typing import Any

from lp.platform.disk_cache import checksum, locked, trim, use, why
from lp.platform.processor import num_cores, processor_features

log = logging.getLogger("lookahead")

COMPILERS = ("g++", "c++", "clang++")
# The nice value of compilers in the background, which leave their core to any other thread that could run.
LOWER_PRIORITY = 10

# The name of a thread that compiles in the background.
THREAD = "compile"
# The libraries that are compiled in the background, by their folders, and the lock of what compiles one of them.
_begun: dict[Path, Future[None]] = {}
_background = Lock()


class CannotBuild(RuntimeError):
    """The library cannot be made here. The message says why, on one line."""


class NoCompiler(CannotBuild):
    """There is no compiler, so that nothing can be made."""


@dataclass(frozen=True)
class Source:
    """C++ to be compiled.

    name: of the library's file. kind: what the names of its folders begin with. text: the file that is compiled.
    headers: the folder of the headers that it may include. flags: the compiler's.
    """

    name: str
    kind: str
    text: str
    headers: Path
    flags: tuple[str, ...]

    @property
    def digest(self) -> str:
        """A digest of the source, its headers, the flags, the machine and the compiler, if the user has chosen one."""
        digest = hashlib.sha256(self.text.encode())
        for header in sorted(self.headers.glob("*.h")):
            digest.update(header.read_bytes())
        chosen = [os.environ["CXX"]] if os.environ.get("CXX") else []
        digest.update(repr((self.flags, platform.machine(), processor_features(), *chosen)).encode())
        return digest.hexdigest()[:24]

    def place(self, folder: Path) -> Path:
        """Where the library is kept in a folder."""
        return folder / f"{self.kind}-{self.digest}"


def begin(sources: Sequence[Source], folder: Path) -> None:
    """Starts to compile the sources whose libraries are missing, one after another, while the caller goes on.

    `build` waits for the one that is being compiled, and raises what goes wrong. When the main thread ends, no other
    one is begun.
    """
    missing = {}
    for source in sources:
        place = source.place(folder)
        if place not in _begun and not place.exists():
            missing[place] = source
            _begun[place] = Future()
    if missing:
        Thread(target=_build_begun, args=(missing,), name=THREAD).start()


def _build_begun(sources: dict[Path, Source]) -> None:
    """sources: by their places."""
    if sys.platform == "linux":  # where a thread has a priority of its own, which its compilers inherit
        os.setpriority(os.PRIO_PROCESS, 0, LOWER_PRIORITY)
    for place, source in sources.items():
        begun = _begun[place]
        with _background:
            if not (main_thread().is_alive() and begun.set_running_or_notify_cancel()):
                continue
            try:
                _build_one(source, place)
            except CannotBuild:
                pass  # for `build` to find out
            finally:
                begun.set_result(None)


def build(sources: Sequence[Source], folder: Path, remark: str) -> list[Path]:
    """The libraries of sources, from the folder or compiled, several at a time. Raises CannotBuild.

    remark: is logged with the name of the first source if any of them must be compiled. A library is kept under a
    digest of its source, with a checksum of itself beside it, as loading one that is cut off could end the process. Of
    several processes that need the same one, one compiles it and the others wait.
    """
    started = time.monotonic()
    places = [source.place(folder) for source in sources]
    num_missing = sum(not place.exists() for place in places)
    if num_missing:
        find_compiler()
        log.info("compiling the %s, which takes some seconds, %s", sources[0].name, remark)
    with ThreadPoolExecutor(max(1, min(num_missing, num_cores()))) as pool:
        libraries = list(pool.map(_finish, sources, places))
    if num_missing:
        log.info("compiled in %.1f s", time.monotonic() - started)
    return libraries


def _finish(source: Source, kept: Path) -> Path:
    """The library of a source that may have been begun."""
    begun = _begun.get(kept)
    if begun is not None and not begun.cancel():
        begun.result()
    return _build_one(source, kept)


def _build_one(source: Source, kept: Path) -> Path:
    """kept: the folder of its library."""
    use(kept)
    library, expected = kept / f"{source.name}.so", kept / "sha256"
    try:
        with locked(kept, f"compile the {source.name}"):
            if kept.exists() and not (
                library.is_file() and expected.is_file() and checksum(library) == expected.read_text()
            ):
                log.warning("%s is corrupt; compiling anew", kept)
                shutil.rmtree(kept)
            if not kept.exists():
                _compile(source, kept)
                trim()
            return library
    except OSError as error:
        raise CannotBuild(f"{kept} cannot be written: {why(error, kept.parent)}") from error


def load(library: Path, kind: type[ctypes.CDLL] = ctypes.CDLL) -> ctypes.CDLL:
    """Loads a library. kind: ctypes.PyDLL keeps other threads of Python waiting while it works. Raises CannotBuild."""
    try:
        return kind(str(library))
    except OSError as error:
        raise CannotBuild(f"{library} cannot be loaded: {error.strerror or error}") from error


def find_compiler() -> list[str]:
    """The words of a C++ compiler's command: those of the environment variable CXX, or the first that is installed.

    Raises CannotBuild if there is none.
    """
    if chosen := shlex.split(os.environ.get("CXX", "")):
        if shutil.which(chosen[0]) is None:
            raise NoCompiler(f"CXX={chosen[0]} is not a program; let it name a C++ compiler, or unset it")
        return chosen
    compiler = next((found for name in COMPILERS if (found := shutil.which(name))), None)
    if compiler is None:
        raise NoCompiler("there is no C++ compiler; install g++, or let CXX name one")
    return [compiler]


def _compile(source: Source, kept: Path) -> None:
    """Makes the folder `kept`, whole or not at all."""
    compiler = find_compiler()
    with TemporaryDirectory(dir=kept.parent) as temporary:
        text, library = (Path(temporary) / f"{source.name}.{ending}" for ending in ("cpp", "so"))
        text.write_text(source.text)
        command = [*compiler, *source.flags, "-shared", "-fPIC", f"-I{source.headers}", str(text), "-o", str(library)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            reason = next((line for line in done.stderr.splitlines() if "error" in line), done.stderr)
            if os.strerror(errno.ENOSPC) in done.stderr:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            raise CannotBuild(f"{' '.join(compiler)} fails: {' '.join(reason.split())[:300]}")
        (Path(temporary) / "sha256").write_text(checksum(library))
        os.replace(temporary, kept)
        Path(temporary).mkdir()  # for its own removal


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
    """Starts a kernel on the current stream: `grid` programs of `num_warps` warps.

    Raises RuntimeError if the kernel cannot be compiled for this GPU, or needs more than the GPU has.
    """
    from triton.errors import TritonError  # which is no RuntimeError, as other failures of a GPU are

    try:
        kernel[grid](*arguments, num_warps=num_warps, num_stages=num_stages, **constants)
    except TritonError as error:
        raise RuntimeError(f"a kernel cannot run on this GPU: {error}") from error
