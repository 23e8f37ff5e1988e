"""Where this project keeps what it made for a machine: compiled forwards, measured step times.

The folder is that of the environment variable LOOKAHEAD_CACHE, or a user's cache folder of the system. All in it can be
made again.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

from platformdirs import user_cache_path

log = logging.getLogger("lookahead")

VARIABLE = "LOOKAHEAD_CACHE"


def folder(name: str) -> Path | None:
    """A folder of the cache, made if need be, which only its user can read; None if that cannot be done."""
    root = Path(os.environ[VARIABLE]) if os.environ.get(VARIABLE) else user_cache_path("lookahead-parallel")
    path = root.expanduser() / name
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        log.warning("nothing is kept for later runs: %s cannot be made (%s)", path, error.strerror or error)
        return None
    return path
