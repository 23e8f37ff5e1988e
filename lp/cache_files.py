"""Files that this project keeps between runs on a machine: compiled forwards, step times, unpacked models.

They lie in the folder that the environment variable LOOKAHEAD_CACHE names, else in the system's cache folder for the
user. All of them can be made again. Knows nothing of what they hold.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

from filelock import FileLock, Timeout
from platformdirs import user_cache_path

log = logging.getLogger("lookahead")

VARIABLE = "LOOKAHEAD_CACHE"


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
        log.warning("%s is not kept for later runs: %s", path, error.strerror or error)


def folder(name: str) -> Path | None:
    """A folder of the cache, made for its user alone if it is missing; None, with a warning, if it cannot be made."""
    root = Path(os.environ[VARIABLE]) if os.environ.get(VARIABLE) else user_cache_path("lookahead-parallel")
    try:
        path = root.expanduser() / name
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except (OSError, RuntimeError) as error:  # RuntimeError: "~" names a user who does not exist
        log.warning("nothing is kept for later runs: the folder %s of %s cannot be made (%s)", name, root, error)
        return None
    return path


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
