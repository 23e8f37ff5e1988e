"""Remembers on the disk which checkpoints have passed the checks of loading, so that a start need not repeat them.

The checks compare logits: of trees with those of their paths (exactness.py), of the compiled forward with the model's
own (compilation.py). They take about a third of a warm start on a CPU. What passed once passes again as long as all
that it depends on is the same: weights, configuration, processor, compiler, libraries and this package's own code. On a
GPU they are always carried out, as drivers and clocks are not known well enough here.
"""

from __future__ import annotations

import hashlib
import platform
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import torch
import transformers

from lp.platform import disk_cache
from lp.platform.build import NoCompiler, find_compiler
from lp.platform.hardware import device_name

# Checkpoints that are remembered; the oldest are forgotten first.
MOST_KEPT = 200


class Checks:
    """Whether a checkpoint has passed before, and where that is kept."""

    def __init__(self, path: str, device: torch.device, *facts: Any):
        """path: of the checkpoint's folder. facts: what else the checks depend on; their repr() identifies them."""
        self._file: Path | None = None
        if device.type == "cpu" and (kept := disk_cache.folder("checks")) is not None:
            known = [_files_of(Path(path)), _code(), _compiler(), device_name(device), platform.machine(), *facts]
            known += [torch.__version__, transformers.__version__, torch.get_num_threads()]
            self._file = kept / f"{disk_cache.digest([repr(known)])}.json"

    @property
    def have_passed(self) -> bool:
        return self._file is not None and self._file.is_file()

    def note(self) -> None:
        """Remembers that all checks have been passed."""
        if self._file is not None and not self._file.is_file():
            disk_cache.write_json(self._file, {})
            with suppress(OSError):
                newest_first = sorted(self._file.parent.iterdir(), key=lambda file: -file.stat().st_mtime_ns)
                for file in newest_first[MOST_KEPT:]:
                    file.unlink()


def _files_of(folder: Path) -> list[tuple[str, int, int]]:
    """Name, size and time of change of all files of a checkpoint, which another checkpoint in its place differs in."""
    found = [(file, file.stat()) for file in folder.resolve().iterdir() if file.is_file()]
    return sorted((str(file), stat.st_size, stat.st_mtime_ns) for file, stat in found)


@cache
def _code() -> str:
    """A digest of this package's own code."""
    digest = hashlib.sha256()
    for file in sorted(Path(__file__).parents[1].rglob("*")):
        if file.suffix in (".py", ".h", ".cpp"):
            digest.update(file.read_bytes())
    return digest.hexdigest()


def _compiler() -> list[Any]:
    try:
        words = find_compiler()
    except NoCompiler:
        return []
    stat = Path(words[0]).resolve().stat()
    return [words, stat.st_size, stat.st_mtime_ns]
