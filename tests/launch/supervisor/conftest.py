"""The checkpoint that supervised servers serve."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.launch.server.checkpoint import write


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("supervised"))
