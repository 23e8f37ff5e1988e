"""The structure of the sources: no circles of imports, and a docstring for every folder."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from tests.test_imports import ROOT, SOURCES, module_of, used_names

PACKAGES = sorted({path.parent for path in SOURCES if path.parts[len(ROOT.parts)] != "demo"})


def imports_of(paths: Iterable[Path]) -> dict[str, set[str]]:
    """Finds the other modules among `paths` that each module imports, inside functions as well."""
    modules = {module_of(path): path for path in paths}
    arrows = {}
    for module, path in modules.items():
        package = module if path.name == "__init__.py" else module.rpartition(".")[0]
        names = used_names(ast.parse(path.read_text(encoding="utf-8")), package)
        arrows[module] = {owner for _, name in names if (owner := _owner(name, modules)) and owner != module}
    return arrows


def _owner(name: str, modules: Mapping[str, Path]) -> str | None:
    """The module that a dotted name belongs to."""
    while name and name not in modules:
        name = name.rpartition(".")[0]
    return name or None


def find_circle(arrows: Mapping[str, set[str]]) -> list[str] | None:
    """Modules, or rooms, that import each other in a circle."""
    try:
        TopologicalSorter(arrows).prepare()
    except CycleError as error:
        return error.args[1]
    return None


def rooms_of(arrows: Mapping[str, set[str]]) -> dict[str, set[str]]:
    """The arrows between neighbouring folders, e.g. from launch.server to launch.config."""
    rooms: dict[str, set[str]] = defaultdict(set)
    for module, imported in arrows.items():
        for other in imported:
            one, two = module.split("."), other.split(".")
            if len(one) > 2 and len(two) > 2 and one[0] == two[0] and one[1] != two[1]:
                rooms[".".join(one[:2])].add(".".join(two[:2]))
    return rooms


def test_no_module_imports_itself_in_a_circle() -> None:
    assert find_circle(imports_of(SOURCES)) is None


def test_no_two_rooms_import_each_other() -> None:
    assert find_circle(rooms_of(imports_of(SOURCES))) is None


def test_circles_are_found() -> None:
    assert find_circle({"a": {"b"}, "b": {"c"}, "c": {"a"}}) is not None
    assert find_circle({"a": {"b", "c"}, "b": {"c"}, "c": set()}) is None
    assert rooms_of({"lp.model.causal": {"lp.drafting.simple", "lp.tree", "lp.model.memory"}}) == {
        "lp.model": {"lp.drafting"}
    }


@pytest.mark.parametrize("folder", PACKAGES, ids=lambda folder: str(folder.relative_to(ROOT)))
def test_a_folder_says_what_it_is_for(folder: Path) -> None:
    text = (folder / "__init__.py").read_text(encoding="utf-8")
    assert ast.get_docstring(ast.parse(text)), "the docstring of __init__.py says what the folder is for"
