"""The pictures in docs/pictures are what their scripts draw."""

from __future__ import annotations

import importlib.util
import re
import sys
import xml.etree.ElementTree as ElementTree
from types import ModuleType

import pytest

from lp.tree import PREFIX
from tests.docs.links import ROOT

PICTURES = ROOT / "docs" / "pictures"


def load(name: str) -> ModuleType:
    """The script docs/pictures/NAME.py as a module."""
    specification = importlib.util.spec_from_file_location(name, PICTURES / f"{name}.py")
    assert specification and specification.loader
    module = importlib.util.module_from_spec(specification)
    sys.modules[name] = module  # dataclasses look their module up there
    specification.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["step", "speed"])
def test_a_picture_is_svg_on_a_white_background(name: str):
    text = (PICTURES / f"{name}.svg").read_text(encoding="utf-8")
    assert ElementTree.fromstring(text).tag == "{http://www.w3.org/2000/svg}svg"
    assert re.search(r"fill[=:]\W*#ffffff", text)


def test_the_step_is_drawn_as_committed():
    script = load("draw_step")
    assert script.draw(script.run_steps()) == script.OUTPUT.read_text(encoding="utf-8")


def test_the_step_is_a_step_of_the_project():
    """Both parts together hold all rows, and the accepted rows are a path of the tree whose tokens are emitted."""
    step = load("draw_step").run_steps()
    assert sorted(set(step.parts[0]) | set(step.parts[1])) == list(range(len(step.tree)))
    parents = step.tree.parents.tolist()
    assert [parents[row] for row in step.accepted] == [PREFIX, *step.accepted[:-1]]
    assert step.tree.tokens[step.accepted[1:]].tolist() == step.emitted[:-1]


def test_the_speed_is_drawn_from_the_results():
    """The committed chart has the names, figures and machine of a chart drawn now, whatever version draws it."""
    pytest.importorskip("matplotlib")
    script = load("draw_speed")
    drawn = script.draw()
    committed = script.OUTPUT.read_text(encoding="utf-8")
    measured = [script.read(dtype) for dtype in script.COLOURS]
    assert len(drawn.axes) == 2
    for axes in drawn.axes:
        for label in [*axes.texts, *(axes.get_legend().get_texts() if axes.get_legend() else [])]:
            assert label.get_text() in committed
    for name in script.METHODS.values():
        assert name in committed
    assert script.describe(measured) in committed
    assert f"{measured[0].speed_up('auto', script.GENERATE):.2f}x" in committed
