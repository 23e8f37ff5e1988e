"""Engines on the tiny Llama with a second model beside it."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from lp import Engine, SecondModel
from lp.model.quantization.quantize import Weights
from tests.models import save_checkpoint


@pytest.fixture(scope="session")
def other_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Another random Llama with the same vocabulary, padded."""
    return save_checkpoint(tmp_path_factory.mktemp("other"), seed=3, num_hidden_layers=2, vocab_size=310)


@pytest.fixture(scope="session")
def drafting(checkpoint_folder: Callable[[str], Path], other_folder: Path) -> Callable[[str], Engine]:
    """Returns an engine by its draft: the model "itself", "another" one, its "first layers", or "4 bits"."""

    @cache
    def engine(draft: str) -> Engine:
        folder = str(checkpoint_folder("llama"))
        second = {
            "itself": SecondModel(folder),
            "another": SecondModel(str(other_folder)),
            "first layers": SecondModel(layers=2),
            "4 bits": SecondModel(weights=Weights.int4),
        }
        return Engine.from_pretrained(folder, device="cpu", step_times="off", draft=second[draft])

    return engine
