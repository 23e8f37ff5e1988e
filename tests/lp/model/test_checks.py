"""A checkpoint that has passed the checks of loading is not checked again until something it depends on changes."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from lp import Engine
from lp.model import checkpoint as loading
from lp.model import checks, compilation
from lp.model.causal import CausalModel
from lp.model.checkpoint import ModelSettings, load
from lp.model.compilation import CompileMode
from lp.model.exactness import UnsupportedArchitecture
from lp.model.fast_forward import SequenceRows
from tests.models import save_checkpoint


class Counted:
    """Loads a checkpoint with a cache of its own, and counts which checks are carried out."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch):
        self.folder, self.counts = folder, dict[str, int]()
        for module, name in ((loading, "check_tree"), (compilation, "_find_fault")):
            monkeypatch.setattr(module, name, self._counting(name, getattr(module, name)))

    def _counting(self, name: str, function: Callable):
        def counted(*arguments):
            self.counts[name] = self.counts.get(name, 0) + 1
            return function(*arguments)

        return counted

    def load(self, **settings) -> dict[str, int]:
        """How often each check was carried out."""
        self.counts.clear()
        load(ModelSettings(str(self.folder), device="cpu", **{"compile": CompileMode.on, **settings}))
        return dict(self.counts)


ALL = {"check_tree": 1, "_find_fault": 1}


@pytest.fixture
def counted(tmp_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Counted:
    return Counted(save_checkpoint(tmp_path / "model", "llama"), monkeypatch)


def test_what_has_passed_is_not_checked_again(counted: Counted) -> None:
    assert counted.load() == ALL
    assert counted.load() == {}


def test_probes_share_forwards(counted: Counted, monkeypatch: pytest.MonkeyPatch) -> None:
    steps, run = [], CausalModel.forward_eager

    def counting(model: CausalModel, given: Sequence[SequenceRows], *others: Any):
        steps.append(len(given))
        return run(model, given, *others)

    monkeypatch.setattr(CausalModel, "forward_eager", counting)
    assert counted.load() == ALL
    assert steps == [3, 3, 3], "trunks, trees and the trunks for the compiled forward"


def test_texts_are_the_same_without_checks(counted: Counted) -> None:
    texts = []
    for _ in range(2):
        engine = Engine.from_pretrained(str(counted.folder), device="cpu", compile="on")
        texts.append(engine.generate([5, 9, 7] * 8, max_new_tokens=60, temperature=0.0).token_ids)
    assert texts[0] == texts[1] and counted.counts == ALL


def test_what_it_depends_on_is_checked(counted: Counted, monkeypatch: pytest.MonkeyPatch) -> None:
    counted.load()
    assert counted.load(dtype="bfloat16") == ALL
    assert counted.load(max_length=100) == ALL
    weights = counted.folder / "model.safetensors"
    stat = weights.stat()
    os.utime(weights, ns=(stat.st_atime_ns, stat.st_mtime_ns + 10**9))
    assert counted.load() == ALL, "other weights"
    monkeypatch.setattr(checks, "_code", lambda: "other code")
    assert counted.load() == ALL
    monkeypatch.setattr(checks, "device_name", lambda device: "another processor")
    assert counted.load() == ALL
    monkeypatch.setattr(checks.transformers, "__version__", "99.0")
    assert counted.load() == ALL
    assert counted.load() == {}


def test_what_fails_is_not_remembered(counted: Counted, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_):
        raise UnsupportedArchitecture("planted")

    with monkeypatch.context() as planted:
        planted.setattr(loading, "check_tree", fail)
        for _ in range(2):
            with pytest.raises(UnsupportedArchitecture, match="planted"):
                counted.load()
    with monkeypatch.context() as planted:
        planted.setattr(compilation, "_find_fault", lambda *_: "it is wrong")
        with pytest.raises(ValueError, match="it is wrong"):
            counted.load()
    assert counted.load() == ALL


def test_a_forward_that_was_wrong_is_checked_again(counted: Counted, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a model goes on without it."""
    monkeypatch.setattr(compilation, "WORTHWHILE", 1)
    with monkeypatch.context() as planted:
        planted.setattr(compilation, "_find_fault", lambda *_: "it is wrong")
        counted.load(compile=CompileMode.auto)
    assert counted.load(compile=CompileMode.auto) == ALL
    assert counted.load(compile=CompileMode.auto) == {}


def test_a_gpu_is_always_checked(counted: Counted) -> None:
    assert not checks.Checks(str(counted.folder), torch.device("cuda")).have_passed
