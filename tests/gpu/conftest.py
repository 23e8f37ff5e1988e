"""The GPU of these tests: a real one, the emulated one on request, or none, and then they are skipped."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import pytest
import torch

from tests.cuda_on_cpu.conftest import cuda as emulated_gpu  # noqa: F401 (a fixture)
from tests.cuda_on_cpu.conftest import shorten_ladder, shorten_prompts
from tests.cuda_on_cpu.gpu import MakesGpuTensors
from tests.models import save_checkpoint

_Result = TypeVar("_Result")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--emulated-gpu", action="store_true", help="run tests/gpu on a GPU that the CPU emulates")


def is_emulated(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--emulated-gpu", default=False))


@pytest.fixture(autouse=True)
def needs_gpu(request: pytest.FixtureRequest) -> None:
    """Skips a test that cannot run: without any GPU, or in processes that would have no emulated one."""
    if request.node.get_closest_marker("real_gpu") and is_emulated(request):
        pytest.skip("it needs a real GPU")
    if not is_emulated(request) and not torch.cuda.is_available():
        pytest.skip("needs a GPU")


@pytest.fixture
def gpu(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Callable[[], AbstractContextManager[object]]:
    """The GPU of a test. What it returns makes a context in which a further thread has the GPU, too."""
    if is_emulated(request):
        shorten_ladder(monkeypatch)
        shorten_prompts(monkeypatch)
        request.getfixturevalue("emulated_gpu")
        return MakesGpuTensors
    return nullcontext


@pytest.fixture
def in_thread(gpu: Callable[[], AbstractContextManager[object]]) -> Callable[[Callable[[], _Result]], _Result]:
    """Runs a function in a thread that has set no device, as the server's worker thread has not."""

    def run(function: Callable[[], _Result]) -> _Result:
        found: list[_Result | BaseException] = []

        def work() -> None:
            try:
                with gpu():
                    found.append(function())
            except BaseException as error:
                found.append(error)

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        if isinstance(found[0], BaseException):
            raise found[0]
        return found[0]

    return run


@pytest.fixture(scope="session")
def shape_folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int, int], Path]:
    """A Llama of two layers by its query heads for each key/value head, and by its head dimension."""

    @cache
    def folder(groups: int, head_dim: int) -> Path:
        sizes: dict[str, Any] = {"num_key_value_heads": 2, "num_attention_heads": 2 * groups, "head_dim": head_dim}
        made = tmp_path_factory.mktemp(f"llama-{groups}-{head_dim}")
        return save_checkpoint(made, "llama", **sizes, num_hidden_layers=2, max_position_embeddings=2048)

    return folder
