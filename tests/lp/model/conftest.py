"""What tests of compiled forwards share."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder for compiled code, shared by all workers of a test run, as compiling takes long."""
    folder = tmp_path_factory.getbasetemp().parent / "compiled"
    folder.mkdir(exist_ok=True)
    return folder
