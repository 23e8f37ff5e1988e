"""Fixtures that all tests share: tiny checkpoints, each made when it is first needed, once in a test run."""

from __future__ import annotations

import atexit
import gc
import os
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel

from launch.config import process
from lp import Engine
from lp.platform import build, disk_cache
from lp.platform.disk_cache import VARIABLE
from lp.platform.library import library
from tests.models import load_reference, save_checkpoint

# `make test-clients` runs these, in other environments and without this file.
collect_ignore = ["clients"]
if not (find_spec("playwright") and find_spec("axe_playwright_python")):
    collect_ignore.append("page")  # `make test-page` installs what they need

# Programs that tests call in this process must not have the C library keep what it frees: the emulated GPU's arenas of
# 3.6 GB then become one piece of tens of gigabytes, and a process with a piece larger than the memory cannot fork.
process.keep_memory = lambda: None

freeze = gc.freeze  # programs that tests call in this process get one that does nothing


def pytest_configure(config: pytest.Config) -> None:
    """Sets a cache folder for compiled forwards and step times, hides certificates, and makes SIGINT work.

    The folder is kept between test runs, and it is not the one of the user who runs the tests. No test talks to another
    host, and every HTTP client would read the system's certificates, which takes 30 ms. A shell lets programs that it
    starts in the background ignore SIGINT, and the programs that the tests start and interrupt would inherit that.
    """
    os.environ.setdefault(VARIABLE, str(config.cache.mkdir("lookahead")))
    os.environ.pop("SSL_CERT_FILE", None)
    os.environ["SSL_CERT_DIR"] = str(config.cache.mkdir("no-certificates"))
    _set_up_hypothesis(config.cache.mkdir("hypothesis"))
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks the slow tests of an emulated GPU, whose kernels Triton interprets: `make test-kernels` runs them."""
    folders = tuple(Path(__file__).parent / name for name in ("cuda_on_cpu", "lp/model/gpu"))
    for item in items:
        if item.get_closest_marker("slow") and any(item.path.is_relative_to(folder) for folder in folders):
            item.add_marker("interpreted")


def pytest_collection_finish() -> None:
    """Leaves what was imported out of garbage collections, which take milliseconds then.

    A program that a test calls in this process must not do the same: what is garbage by then would stay for ever.
    """
    _free_garbage()
    gc.freeze = lambda: None
    atexit.register(gc.unfreeze)  # triton prints a long report of what is left at the end


def _free_garbage() -> None:
    """Frees what is garbage, and lets later collections skip what is not."""
    gc.collect()
    freeze()


def _set_up_hypothesis(folder: Path) -> None:
    """Lets hypothesis try the same examples in every run, however slow the machine is, and keep none in the checkout.

    A machine that runs tests/gpu alone may lack it.
    """
    with suppress(ImportError):
        from hypothesis import configuration, settings

        configuration.set_hypothesis_home_dir(folder)
        settings.register_profile("lookahead", derandomize=True, deadline=None, database=None)
        settings.load_profile("lookahead")


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def nothing_compiles() -> Iterator[None]:
    """Waits for what a test has begun to compile, as the next test may have another compiler."""
    yield
    for thread in threading.enumerate():
        if thread.name == build.THREAD:
            thread.join()


@pytest.fixture(scope="module", autouse=True)
def no_garbage() -> Iterator[None]:
    """Frees what a module's tests have left in circles of references."""
    yield
    _free_garbage()


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


@pytest.fixture
def own_libraries(own_cache: Path, kept: Path) -> Path:
    """The folder for compiled code of a cache of this test, which holds the host's library alone."""
    library()  # compiles it, if it is missing
    folder = own_cache / "compiled"
    folder.unlink()
    for host in kept.glob("host-*/host.so"):
        shutil.copytree(host.parent, folder / host.parent.name)
    return folder


@pytest.fixture(scope="session")
def checkpoint_folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a tiny model, by the name of its architecture."""

    @cache
    def folder(architecture: str) -> Path:
        return save_checkpoint(tmp_path_factory.mktemp(architecture), architecture)

    return folder


@pytest.fixture(scope="session")
def engine_of(checkpoint_folder: Callable[[str], Path]) -> Callable[[str], Engine]:
    """A float32 engine on a tiny model, by the name of its architecture."""

    @cache
    def engine(architecture: str) -> Engine:
        return Engine.from_pretrained(str(checkpoint_folder(architecture)), device="cpu", step_times="off")

    return engine


@pytest.fixture(scope="session")
def reference_of(checkpoint_folder: Callable[[str], Path]) -> Callable[[str], PreTrainedModel]:
    """The same model as transformers runs it."""
    return cache(lambda architecture: load_reference(checkpoint_folder(architecture)))


@pytest.fixture(scope="session")
def llama(engine_of: Callable[[str], Engine]) -> Engine:
    return engine_of("llama")


@pytest.fixture(scope="session")
def llama_reference(reference_of: Callable[[str], PreTrainedModel]) -> PreTrainedModel:
    return reference_of("llama")
