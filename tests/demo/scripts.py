"""Imports the scripts of demo/ as Python runs them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType

from tests.launch.commands import CHECKOUT


@contextmanager
def imported(script: str) -> Iterator[ModuleType]:
    """The script as a module: its folder is on the path, so that it finds the others, until the block ends."""
    sys.path.insert(0, str(CHECKOUT / "demo"))
    before = set(sys.modules)
    try:
        yield import_module(script)
    finally:
        sys.path.remove(str(CHECKOUT / "demo"))
        for name in {*sys.modules} - before:
            if not getattr(sys.modules[name], "__package__", None):
                del sys.modules[name]
