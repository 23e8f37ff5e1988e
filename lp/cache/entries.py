"""The entries of the cache: what there is, how large it is, when it was used last, and whether somebody uses it.

An entry is a file or folder directly in the folder of its kind. Beside it lie `NAME.lock`, which is locked while the
entry is made, and `NAME.used`, on which every process that uses the entry holds a shared lock until it ends, and whose
time of change is that of the last use. Both files are empty and stay when the entry is removed, since a lock on a
removed file would protect nothing.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from lp import cache_files

# By the name of its folder, what a kind of entries is.
KINDS = {
    "compiled": "compiled forwards",
    "gguf": "unpacked GGUF files",
    "packages": "downloaded packages",
    "step-times": "measured step times",
}
LOCK, USED = ".lock", ".used"
# Names of what is being written. It is left alone for so many seconds; after that, its writer must have been killed.
UNFINISHED, LEFT_ALONE_S = ("tmp", "."), 86400.0

# The files whose shared locks this process holds, by their entries.
_held: dict[Path, int] = {}


@dataclass(frozen=True)
class Entry:
    """num_bytes: what it takes on the disk, about. last_used: in seconds since the epoch."""

    kind: str
    path: Path
    num_bytes: int
    last_used: float

    @property
    def title(self) -> str:
        """What a person calls the entry: an unpacked model is the folder in the entry, whose own name is a digest."""
        folders = sorted(inner.name for inner in self.path.iterdir() if inner.is_dir()) if self.kind == "gguf" else []
        return folders[0] if folders else self.path.name


def use(path: Path) -> None:
    """Notes that this process uses an entry, which is not removed while the process lives.

    To be called before one looks whether the entry is there. path: the entry's. A cache that cannot be written cannot
    be cleaned either, so then nothing happens.
    """
    if path not in _held:
        try:
            file = os.open(_beside(path, USED), os.O_RDWR | os.O_CREAT, 0o600)
        except OSError:
            return
        fcntl.flock(file, fcntl.LOCK_SH)  # waits while somebody removes the entry
        _held[path] = file
    os.utime(_held[path])


def open_entry(kind: str, name: str) -> Path | None:
    """The folder of an entry, which is made if it is missing, and not removed while this process lives.

    None, with a warning, if it cannot be made.
    """
    if (folder := cache_files.folder(kind)) is None:
        return None
    use(folder / name)  # before it is made, as it could be removed at once
    return cache_files.folder(f"{kind}/{name}")


def find_entries() -> list[Entry]:
    """All entries, those used least recently first. What is being written is not among them."""
    found = []
    for kind in KINDS:
        if (folder := cache_files.folder(kind)) is None:
            continue
        for path in folder.iterdir():
            with suppress(FileNotFoundError):  # somebody else removes it just now
                if path.suffix not in (LOCK, USED) and not _is_being_written(path):
                    found.append(_entry(kind, path))
    return sorted(found, key=lambda entry: entry.last_used)


def remove(entry: Entry) -> bool:
    """Removes an entry; returns False if somebody uses or makes it. Raises OSError if it cannot be removed."""
    with _alone(entry.path) as is_alone:
        if is_alone:
            shutil.rmtree(entry.path) if entry.path.is_dir() else entry.path.unlink(missing_ok=True)
    return is_alone


@contextmanager
def _alone(path: Path) -> Iterator[bool]:
    """Whether nobody uses or makes an entry. If so, nobody begins to while the body runs."""
    with ExitStack() as stack:
        try:
            file = os.open(_beside(path, USED), os.O_RDWR | os.O_CREAT, 0o600)
            stack.callback(os.close, file)
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            stack.enter_context(FileLock(_beside(path, LOCK), timeout=0))
        except (BlockingIOError, Timeout):
            yield False
        else:
            yield True


def _beside(path: Path, ending: str) -> Path:
    return path.with_name(path.name + ending)


def _entry(kind: str, path: Path) -> Entry:
    used = _beside(path, USED)
    return Entry(kind, path, _num_bytes(path), (used if used.exists() else path).stat().st_mtime)


def _is_being_written(path: Path) -> bool:
    return path.name.startswith(UNFINISHED) and time.time() - path.stat().st_mtime < LEFT_ALONE_S


def _num_bytes(path: Path) -> int:
    """The bytes of a file, or of all files in a folder."""
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(file.lstat().st_size for file in files if not file.is_dir())
