"""The emulated GPU as a fixture."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cuda_on_cpu import cuda_api, device_guard
from tests.cuda_on_cpu.gpu import MakesGpuTensors


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Two emulated GPUs, for this test and thread. Checkpoints must be there before: weights are not made on them."""
    device_guard.install()
    cuda_api.install(monkeypatch)
    with MakesGpuTensors():
        yield
