"""Keeps the cache below its bound: the entries that were used least recently go first, and those in use stay.

Whoever adds an entry calls `trim` afterwards.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Iterable

from lp.cache.entries import Entry, find_entries, remove

log = logging.getLogger("lookahead")

# The environment variable that gives the bound, and the bound without it, both in GB (1e9 bytes).
VARIABLE, USUAL_GB = "LOOKAHEAD_CACHE_GB", 20.0


def most_bytes() -> int:
    """The bound in bytes. A value that is not a number of GB is ignored, with a warning."""
    given = os.environ.get(VARIABLE, "").strip()
    try:
        found = float(given or USUAL_GB)
    except ValueError:
        found = math.nan
    if not 0 <= found < math.inf:
        log.warning("%s=%r is ignored: it must be a number of GB, such as %g", VARIABLE, given, USUAL_GB)
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
