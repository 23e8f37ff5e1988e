"""What tests of compiled forwards share."""

from __future__ import annotations

from pathlib import Path

import pytest

from lp.platform import disk_cache
from lp.platform.disk_cache import VARIABLE


@pytest.fixture(scope="session")
def kept() -> Path:
    """The folder for compiled code, which all tests and programs of a test run share, as compiling takes long."""
    folder = disk_cache.folder("compiled")
    assert folder is not None
    return folder


@pytest.fixture
def own_cache(tmp_path: Path, kept: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder for this test, in which compiled code alone is that of the whole test run."""
    cache = tmp_path / "cache"
    cache.mkdir()
    (cache / "compiled").symlink_to(kept)
    monkeypatch.setenv(VARIABLE, str(cache))
    return cache
