"""Files that this project keeps between runs on a machine: compiled forwards, measured times, unpacked models.

They lie in the folder that the environment variable LOOKAHEAD_CACHE names, else in the system's cache folder for the
user. All of them can be made again. Knows nothing of what they hold.

An entry is a file or folder directly in the folder of its kind. Beside it lie `NAME.lock`, which is locked while the
entry is made, and `NAME.used`, on which every process that uses the entry holds a shared lock until it ends, and whose
time of change is that of the last use. Both files are empty and stay when the entry is removed, since a lock on a
removed file would protect nothing. The caller that adds an entry calls `trim` afterwards: the entries that were used
least recently go first, and those in use stay.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import logging
import math
import os
import shutil
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

from filelock import FileLock, Timeout

log = logging.getLogger("lookahead")

# The environment variables that name the folder and give the bound; the bound without it. Both in GB (1e9 bytes).
VARIABLE, BOUND_VARIABLE, USUAL_GB = "LOOKAHEAD_CACHE", "LOOKAHEAD_CACHE_GB", 20.0
# By the name of its folder, what a kind of entries is.
KINDS = {
    "checks": "which checkpoints have passed the checks of loading",
    "compiled": "compiled forwards",
    "gguf": "unpacked GGUF files",
    "packages": "downloaded packages",
    "products": "times of products on a GPU",
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


def digest(facts: Any) -> str:
    """A short name for all that a file depends on. facts: JSON values, or objects whose str() identifies them."""
    return hashlib.sha256(json.dumps(facts, default=str, sort_keys=True).encode()).hexdigest()[:20]


def checksum(path: Path) -> str:
    """The SHA-256 of a file's content, in hexadecimal. Raises OSError."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def read_json(path: Path) -> Any:
    """The JSON value in a file; None if there is no file, and None with a warning if it cannot be read."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        log.warning("%s is ignored: %s", path, error)
        return None


def write_json(path: Path, value: Any) -> None:
    """Writes a file whole or not at all. If it cannot be written, a warning is logged and nothing else happens."""
    try:
        with NamedTemporaryFile("w", dir=path.parent, suffix=".json", delete=False, encoding="utf-8") as stream:
            try:
                json.dump(value, stream)
                stream.flush()
                os.replace(stream.name, path)
            except BaseException:
                os.unlink(stream.name)
                raise
    except OSError as error:
        log.warning("%s is not kept for later runs: %s", path, why(error, path))


def why(error: OSError, path: Path) -> str:
    """What an error of writing at a path means. path: need not exist; of a full disk, it tells which one is full."""
    reason = error.strerror or str(error)
    if error.errno not in (errno.ENOSPC, errno.EDQUOT):
        return reason
    disk = path.absolute()
    while not os.path.ismount(disk):
        disk = disk.parent
    try:
        free = f", {shutil.disk_usage(disk).free / 1e6:,.0f} MB free"
    except OSError:
        free = ""
    return f"{reason} (the disk at {disk}{free})"


def folder(name: str) -> Path | None:
    """A folder of the cache, made for its user alone if it is missing; None, with a warning, if it cannot be made."""
    try:
        return make_folder(name)
    except (OSError, RuntimeError) as error:
        root = _root()
        reason = why(error, root) if isinstance(error, OSError) else error
        log.warning("nothing is kept for later runs: the folder %s of %s cannot be made: %s", name, root, reason)
        return None


def make_folder(name: str) -> Path:
    """The same. Raises OSError if it cannot be made, and RuntimeError if "~" names a user who does not exist."""
    path = _root().expanduser() / name
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    return path


def _root() -> Path:
    if chosen := os.environ.get(VARIABLE):
        return Path(chosen)
    try:
        from platformdirs import user_cache_path
    except ModuleNotFoundError:  # as on a machine that has PyTorch and transformers alone
        return Path("~/.cache/lookahead-parallel")
    return user_cache_path("lookahead-parallel")


@contextmanager
def locked(folder: Path, task: str) -> Iterator[None]:
    """Lets one process at a time do a task in a folder. The others wait, and log that they do.

    The lock lies beside the folder, so that it outlives it. task: what is done, for the log, such as "unpack FILE".
    Raises OSError if the lock cannot be written.
    """
    lock = FileLock(f"{folder}.lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        log.info("waiting for another process to %s", task)
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


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
    if (of_kind := folder(kind)) is None:
        return None
    use(of_kind / name)  # before it is made, as it could be removed at once
    return folder(f"{kind}/{name}")


def find_entries() -> list[Entry]:
    """All entries, those used least recently first. What is being written is not among them."""
    found = []
    for kind in KINDS:
        if (of_kind := folder(kind)) is None:
            continue
        for path in of_kind.iterdir():
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


def most_bytes() -> int:
    """The bound in bytes. A value that is not a number of GB is ignored, with a warning."""
    given = os.environ.get(BOUND_VARIABLE, "").strip()
    try:
        found = float(given or USUAL_GB)
    except ValueError:
        found = math.nan
    if not 0 <= found < math.inf:
        log.warning("%s=%r is ignored: it must be a number of GB, such as %g", BOUND_VARIABLE, given, USUAL_GB)
        found = USUAL_GB
    return int(1e9 * found)


def trim(keep_bytes: int | None = None) -> list[Entry]:
    """Removes entries until no more than `keep_bytes` are left, or only those that are in use; returns them.

    keep_bytes: None is the bound. An entry that cannot be removed is passed over, with a warning.
    """
    bound = most_bytes() if keep_bytes is None else keep_bytes
    entries = find_entries()
    surplus = sum(entry.num_bytes for entry in entries) - bound
    removed: list[Entry] = []
    for entry in entries:
        if surplus <= 0:
            break
        if gone := remove_all([entry]):
            surplus -= entry.num_bytes
            removed += gone
    return removed


def remove_all(entries: Iterable[Entry]) -> list[Entry]:
    """Removes those of the entries that are not in use; returns them. What cannot be removed is logged."""
    removed = []
    for entry in entries:
        try:
            if remove(entry):
                log.info("removed %s/%s (%.0f MB) from the cache", entry.kind, entry.path.name, entry.num_bytes / 1e6)
                removed.append(entry)
        except OSError as error:
            log.warning("%s cannot be removed from the cache: %s", entry.path, error.strerror or error)
    return removed


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
