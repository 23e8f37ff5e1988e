"""How the command line is turned into settings."""

from __future__ import annotations

import pytest

from launch.generate import GenerateSettings
from launch.program import configuration


@pytest.mark.parametrize("text", ["${HOME}", "???", "a ${", "${checkout:demo}", "null", "'a', [b=c", "\\${x}"])
def test_free_texts_are_literal(text: str) -> None:
    configuration.register("generate", GenerateSettings)
    given = [f"prompt={text}", f"prompt_file={text}", f"prompts={text}", "model=checkpoint", f"model.path={text}"]
    settings = configuration.load("generate", GenerateSettings, given)
    assert (settings.prompt, settings.prompt_file, settings.prompts, settings.model.path) == (text,) * 4
