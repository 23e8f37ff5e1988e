"""Models with their native forwards."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from lp.model.causal import CausalModel
from lp.model.checkpoint import ModelSettings, load
from lp.model.compilation import CompileMode
from lp.model.cpu.forward import NativeForward
from lp.model.cpu.make import make_native
from tests.lp.model.cpu.shapes import RECURRENT_SHAPES, SHAPES
from tests.models import save_checkpoint


@pytest.fixture
def load_both(
    checkpoint_folder: Callable[[str], Path], tmp_path: Path, kept: Path
) -> Callable[[str, str], tuple[CausalModel, NativeForward]]:
    def load_both(name: str, dtype: str) -> tuple[CausalModel, NativeForward]:
        if name in (shapes := SHAPES | RECURRENT_SHAPES):
            architecture, changes = shapes[name]
            path = save_checkpoint(tmp_path / name, architecture, **changes)
        else:
            path = checkpoint_folder(name)
        model = load(ModelSettings(str(path), dtype, "cpu", compile=CompileMode.off)).model
        return model, make_native(model, kept)

    return load_both
