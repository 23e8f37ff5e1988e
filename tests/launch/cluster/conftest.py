"""Fixtures: a small checkpoint, and a cluster for the tests of a module."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.launch.cluster.clusters import LocalCluster, local_cluster
from tests.launch.server.checkpoint import write


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("served"))


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    """A cluster whose nodes have 2, 2 and 1 cores; the first has two pretended GPUs."""
    pytest.importorskip("ray")
    with local_cluster(cores=[2, 2, 1], gpus=[2, 0, 0]) as started:
        yield started
        started.await_nothing_left()
