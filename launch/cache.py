"""Lists what lies in the cache on disk: compiled forwards, unpacked GGUF files, downloaded packages, measured times.

    python launch/cache.py                 # list the entries, those used least recently first
    python launch/cache.py keep_gb=5       # remove those used least recently until 5 GB are left
    python launch/cache.py clear=gguf      # remove all of a kind: checks, compiled, gguf, products, ...; or all

Entries that a running program uses are never removed, and all can be made again. The cache is kept below 20 GB, or the
number of GB in the environment variable LOOKAHEAD_CACHE_GB, whenever something is added to it.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from launch.config import configuration
from lp.platform import disk_cache
from lp.platform.disk_cache import KINDS, Entry

log = logging.getLogger("lookahead")


@dataclass
class CacheSettings:
    """clear: the kind of entries to remove, or all. keep_gb: GB (1e9 bytes) to leave. Without both, nothing goes."""

    clear: str | None = None
    keep_gb: float | None = None


def run(settings: CacheSettings) -> int:
    """Removes what is asked for and lists what is left. Exit code 0, or 1 if something that was to go is in use."""
    if settings.keep_gb is not None and not 0 <= settings.keep_gb < float("inf"):
        raise ValueError(f"keep_gb={settings.keep_gb:g} must be a number of GB from 0 on")
    if settings.clear not in (None, "all", *KINDS):
        raise ValueError(f"clear={settings.clear} is unknown; use all, {', '.join(KINDS)}")
    wanted = []
    if settings.clear is not None:
        wanted = [entry for entry in disk_cache.find_entries() if settings.clear in ("all", entry.kind)]
        disk_cache.remove_all(wanted)
    if settings.keep_gb is not None:
        disk_cache.trim(int(1e9 * settings.keep_gb))
    left = disk_cache.find_entries()
    show(left)
    num_kept = len({entry.path for entry in wanted} & {entry.path for entry in left})
    if num_kept:
        log.warning("%d of %d entries are in use and stay", num_kept, len(wanted))
    return int(bool(num_kept))


def show(found: list[Entry]) -> None:
    """Prints the entries and what they take together."""
    table = Table("kind", box=SIMPLE)
    table.add_column("entry", overflow="fold")
    table.add_column("MB", justify="right")
    table.add_column("last used", justify="right")
    for entry in found:
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(entry.last_used))
        table.add_row(entry.kind, entry.title, f"{entry.num_bytes / 1e6:,.1f}", when)
    console = Console()
    console.print(table)
    console.print(
        f"{len(found)} entries, {sum(entry.num_bytes for entry in found) / 1e9:.2f} GB of at most "
        f"{disk_cache.most_bytes() / 1e9:g} GB ({disk_cache.BOUND_VARIABLE})",
        highlight=False,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code of `run`, or 2 if the settings cannot be used. Knows no model, unlike launch.config.process.main.

    arguments: None takes those of the command line.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr, force=True)
    configuration.register("cache", CacheSettings)
    if configuration.asks_for_help(arguments):
        configuration.print_help("cache", __doc__)
        return 0
    try:
        return run(configuration.load("cache", CacheSettings, arguments))
    except (ValueError, OSError) as error:
        log.error("error: %s", error)
        return 2


if __name__ == "__main__":
    sys.exit(main())
