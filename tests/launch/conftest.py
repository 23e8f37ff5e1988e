"""The checkpoint on which the programs are tested."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture
def folder(checkpoint_folder: Callable[[str], Path]) -> str:
    return str(checkpoint_folder("llama"))
