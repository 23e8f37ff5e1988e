"""The checkpoint that the programs are tried on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture
def folder(checkpoint_folder: Callable[[str], Path]) -> str:
    return str(checkpoint_folder("llama"))
