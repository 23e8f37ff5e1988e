"""A command line in this process and a server, both on the same tiny model."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lp import Engine
from tests.launch.conftest import folder, main
from tests.launch.server.harness import Running, serving

__all__ = ["folder", "main"]


@pytest.fixture(scope="session")
def server(llama: Engine) -> Iterator[Running]:
    with serving(llama.checkpoint) as running:
        yield running


@pytest.fixture(scope="session")
def locked(llama: Engine) -> Iterator[Running]:
    """A server that wants a key."""
    with serving(llama.checkpoint, api_keys=["secret"], max_body_bytes=4096) as running:
        yield running
