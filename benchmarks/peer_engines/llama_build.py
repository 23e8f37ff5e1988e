"""Builds llama.cpp's programs once, in the user's cache, from the source archive of the package llama-cpp-python.

Nothing of the package is installed. What cannot be done is told by `Unavailable`, in one line.
"""

from __future__ import annotations

import logging
import re
import shutil
import subprocess
import sys
import tarfile
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tqdm import tqdm

from benchmarks.peer_engines.base import Unavailable
from lp.platform import disk_cache

log = logging.getLogger("lookahead")

PACKAGE, VERSION = "llama-cpp-python", "0.3.36"
SHA256 = "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e"
PROGRAMS = ("llama-quantize", "llama-lookup", "llama-lookahead", "llama-bench", "llama-server")
COMPILERS = ("c++", "g++", "clang++")
# The server's web page would be downloaded; it is left out, with tests, OpenSSL and what else is not needed.
OPTIONS = (
    "-DCMAKE_BUILD_TYPE=Release",
    "-DBUILD_SHARED_LIBS=OFF",
    "-DGGML_NATIVE=ON",
    "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_BUILD_UI=OFF",
    "-DLLAMA_USE_PREBUILT_UI=OFF",
    "-DLLAMA_BUILD_APP=OFF",
    "-DLLAMA_OPENSSL=OFF",
)
# Python 3.11 knows filters since 3.11.4. The archive's checksum is known, so one can do without.
EXTRACT: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
# How ninja and make begin their lines: [12/345] and [ 12%].
STEP = re.compile(r"^\[\s*(\d+)(?:/(\d+)|%)\]")


def cache_folder() -> Path:
    """The folder of this version of llama.cpp. Raises Unavailable if it cannot be made."""
    folder = disk_cache.folder(f"peers/llama.cpp-{VERSION}")
    if folder is None:
        raise Unavailable(f"the cache folder cannot be written; let {disk_cache.VARIABLE} name another")
    return folder


def build_programs(num_jobs: int) -> Path:
    """The folder with the programs, which the first call builds: minutes, on several cores. Raises Unavailable.

    num_jobs: compilers that run at a time.
    """
    folder = cache_folder()
    programs = folder / "build" / "bin"
    try:
        with disk_cache.locked(folder, "build llama.cpp"):
            if not (folder / "built").is_file():
                _check_tools()
                if not (folder / "source" / "CMakeLists.txt").is_file():
                    _fetch_source(folder)
                _build(folder, num_jobs)
                (folder / "built").touch()
    except OSError as error:
        raise Unavailable(f"llama.cpp cannot be kept in {folder}: {error.strerror or error}") from error
    return programs


def _check_tools() -> None:
    if shutil.which("cmake") is None:
        raise Unavailable("there is no cmake to build it with")
    if not any(shutil.which(name) for name in COMPILERS):
        raise Unavailable(f"there is no C++ compiler to build it with ({', '.join(COMPILERS)})")


def _fetch_source(folder: Path) -> None:
    """Downloads the archive and unpacks llama.cpp's part of it."""
    partial = folder / "partial"
    shutil.rmtree(partial, ignore_errors=True)  # an earlier try may have left it
    partial.mkdir()
    try:
        log.info("downloading the sources of llama.cpp (77 MB, once): the package %s==%s", PACKAGE, VERSION)
        archive = _download(partial)
        found = disk_cache.checksum(archive)
        if found != SHA256:
            raise Unavailable(f"{archive.name} is not the file that was published: its SHA-256 is {found}")
        _unpack(archive, partial / "source")
        (partial / "source").rename(folder / "source")
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _download(folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", f"--no-binary={PACKAGE}", "--no-cache-dir"]
    command += ["--disable-pip-version-check", "--no-input", "--retries=2", f"--dest={folder}", f"{PACKAGE}=={VERSION}"]
    pip = subprocess.run(command, stdout=sys.stderr, stderr=subprocess.PIPE, text=True, errors="replace")
    archives = sorted(folder.glob("*.tar.gz"))
    if pip.returncode or not archives:
        lines = [line.strip() for line in pip.stderr.splitlines() if line.strip()]
        raise Unavailable(f"{PACKAGE}=={VERSION} cannot be downloaded: {lines[-1] if lines else 'pip gave no reason'}")
    return archives[0]


def _unpack(archive: Path, folder: Path) -> None:
    """Raises Unavailable if the archive holds no llama.cpp."""
    prefix = f"{archive.name.removesuffix('.tar.gz')}/vendor/llama.cpp/"
    try:
        with tarfile.open(archive) as packed:
            members = [one for one in packed.getmembers() if one.name.startswith(prefix)]
            for member in members:
                member.name = member.name.removeprefix(prefix)
            packed.extractall(folder, members, **EXTRACT)
    except (tarfile.TarError, EOFError) as error:
        raise Unavailable(f"{archive.name} cannot be unpacked: {error}") from error
    if not members:
        raise Unavailable(f"{archive.name} holds no {prefix}")


def _build(folder: Path, num_jobs: int) -> None:
    generator = ["-G", "Ninja"] if shutil.which("ninja") else []
    build = str(folder / "build")
    _run(["cmake", "-S", str(folder / "source"), "-B", build, *generator, *OPTIONS], folder / "configure.log")
    targets = ["--target", *PROGRAMS]
    _run(["cmake", "--build", build, "--parallel", str(num_jobs), *targets], folder / "build.log")


def _run(command: list[str], log_file: Path) -> None:
    """Runs a command, shows how far it is, and keeps what it prints. Raises Unavailable if it fails."""
    last = deque[str](maxlen=40)
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
    assert process.stdout is not None
    with process, log_file.open("w", encoding="utf-8") as kept:
        for line in _shown(process.stdout):
            kept.write(line)
            last.append(line.strip())
    if process.returncode:
        told = next((line for line in last if "error" in line.lower()), last[-1] if last else "no reason given")
        raise Unavailable(f"`{' '.join(command[:2])}` failed, see {log_file.name} in {log_file.parent}: {told[:200]}")


def _shown(lines: Iterator[str]) -> Iterator[str]:
    """Passes a build's lines on and shows a progress bar."""
    with tqdm(desc="building llama.cpp", unit="step", file=sys.stderr, dynamic_ncols=True) as bar:
        for line in lines:
            if step := STEP.match(line):
                bar.total = int(step[2] or 100)
                bar.n = int(step[1])
                bar.refresh()
            yield line
