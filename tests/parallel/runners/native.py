"""Tiny models with a native forward, whose rows do not depend on each other: ranks can be compared to the bit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from lp.model.checkpoint import Checkpoint, ModelSettings, load
from lp.model.compilation import CompileMode


def load_native(folder: str, dtype: str) -> Checkpoint:
    return load(ModelSettings(folder, dtype, "cpu", compile=CompileMode.on))


@pytest.fixture
def native(checkpoint_folder: Callable[[str], Path]) -> Callable[..., str]:
    """The folder of a tiny model whose native forward has been compiled; skips the test where it cannot be."""

    def folder(architecture: str, dtype: str = "float32") -> str:
        path = str(checkpoint_folder(architecture))
        try:
            has_native = load_native(path, dtype).model.runs_by_layer
        except ValueError as error:
            pytest.skip(str(error))
        if not has_native:
            pytest.skip("there is no native forward of this model here")
        return path

    return folder
