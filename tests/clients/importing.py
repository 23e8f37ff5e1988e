"""Imports a client's package, or skips the file with the reason for which it is missing."""

from __future__ import annotations

import importlib
import os
from typing import Any

import pytest


def imported(name: str) -> Any:
    """The module of this name. Skips the whole test file if the client could not be installed, or without a server."""
    if "LOOKAHEAD_CLIENT_URL" not in os.environ:
        pytest.skip("a server is needed: run `make test-clients`", allow_module_level=True)
    if reason := os.environ.get("LOOKAHEAD_CLIENT_REASON"):
        pytest.skip(f"{name} could not be installed: {reason}", allow_module_level=True)
    return importlib.import_module(name)
