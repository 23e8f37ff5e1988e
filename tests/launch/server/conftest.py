"""One tiny checkpoint for all tests of the server, and one server that most of them share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from lp.model.checkpoint import Checkpoint, ModelSettings, load
from tests.launch.server import checkpoint as tiny
from tests.launch.server.harness import Running, serving


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.write(tmp_path_factory.mktemp("checkpoints") / "tiny-llama")


@pytest.fixture(scope="session")
def checkpoint(folder: Path) -> Checkpoint:
    return load(ModelSettings(path=str(folder), device="cpu"))


@pytest.fixture(scope="session")
def shared(checkpoint: Checkpoint) -> Iterator[Running]:
    """A server with default settings that no test may stop or block."""
    with serving(checkpoint) as running:
        yield running
