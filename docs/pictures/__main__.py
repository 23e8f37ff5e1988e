"""Draws the pictures of docs/pictures: `python -m docs.pictures`, or `python -m docs.pictures step epoch`."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

FOLDER = Path(__file__).parent
NAMES = sorted(file.stem.removeprefix("draw_") for file in FOLDER.glob("draw_*.py"))


def main(names: list[str]) -> int:
    if unknown := sorted(set(names) - set(NAMES)):
        print(f"there is no picture {', '.join(unknown)}; they are {', '.join(NAMES)}", file=sys.stderr)
        return 2
    for name in names or NAMES:
        FOLDER.joinpath(f"{name}.svg").write_text(draw(name), encoding="utf-8")
    return 0


def draw(name: str) -> str:
    """The SVG text of a picture."""
    return import_module(f"docs.pictures.draw_{name}").draw()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
