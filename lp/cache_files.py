"""Where this project keeps what it made for a machine: compiled forwards, measured step times.

The folder is that of the environment variable LOOKAHEAD_CACHE, or a user's cache folder of the system. All in it can be
made again.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

from platformdirs import user_cache_path

log = logging.getLogger("lookahead")

VARIABLE = "LOOKAHEAD_CACHE"


def digest(facts: Any) -> str:
    """A short name for all that something depends on; facts are JSON values or have a telling str()."""
    return hashlib.sha256(json.dumps(facts, default=str, sort_keys=True).encode()).hexdigest()[:20]


def read_json(path: Path) -> Any:
    """What a file holds, or None if there is none or it is corrupt."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        log.warning("%s is ignored: %s", path, error)
        return None


def write_json(path: Path, value: Any) -> None:
    """Whole or not at all. That it cannot be written is said and does no harm."""
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
    """A folder of the cache, made if need be, which only its user can read; None if that cannot be done."""
    root = Path(os.environ[VARIABLE]) if os.environ.get(VARIABLE) else user_cache_path("lookahead-parallel")
    try:
        path = root.expanduser() / name
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except (OSError, RuntimeError) as error:  # the latter: nobody has the home that "~" names
        log.warning("nothing is kept for later runs: the folder %s of %s cannot be made (%s)", name, root, error)
        return None
    return path
