"""What the pictures are drawn with: SVG shapes whose colours have names, one set for light and one for dark pages.

A shape has its light colour as an attribute, which every viewer knows, and a class, by which a style makes it dark.
"""

from __future__ import annotations

from html import escape

FONT = "Helvetica, Arial, 'DejaVu Sans', sans-serif"
# By name: the colour on light pages, and that on dark ones.
COLOURS = {
    "page": ("#ffffff", "#1e2129"),
    "paper": ("#ffffff", "#2a2f3a"),
    "ink": ("#1f2933", "#e4e8ec"),
    "faint": ("#5b6770", "#a3adb8"),
    "edge": ("#9aa5ae", "#6d7885"),
    "line": ("#dde2e6", "#3f4651"),
    "accept": ("#00805d", "#46d3a2"),
    "emitted": ("#d5f2e6", "#1b4c3b"),
    "rank0": ("#bcdcf5", "#245a84"),
    "rank1": ("#ffd9a8", "#84531a"),
    "rank2": ("#dccff5", "#58438a"),
    "lost": ("#f6c9c9", "#833536"),
    "none": ("none", "none"),
}


def colour(fill: str = "none", stroke: str = "") -> str:
    """Attributes of a shape. fill, stroke: names of COLOURS; no stroke if it is empty."""
    light = f'fill="{COLOURS[fill][0]}"' + (f' stroke="{COLOURS[stroke][0]}"' if stroke else "")
    return f'{light} class="f-{fill}{f" s-{stroke}" if stroke else ""}"'


def dark_rules(prefix: str = "") -> str:
    """The style rules of dark pages. prefix: goes before each selector."""
    rules = []
    for name, (_, dark) in COLOURS.items():
        if name != "none":
            rules.append(f"{prefix}.f-{name}{{fill:{dark}}}{prefix}.s-{name}{{stroke:{dark}}}")
            rules.append(f"{prefix}.p-{name}{{stop-color:{dark}}}")
    return "".join(rules)


def svg(width: int, height: int, title: str, shapes: list[str], definitions: str = "") -> str:
    """A whole picture on a page of its own colour."""
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="{FONT}">',
            f"<title>{escape(title)}</title>",
            f"<style>@media (prefers-color-scheme:dark){{{dark_rules()}}}</style>",
            *([f"<defs>{definitions}</defs>"] if definitions else []),
            f'<rect width="{width}" height="{height}" rx="8" {colour("page")}/>',
            *shapes,
            "</svg>\n",
        ]
    )


def text(x: float, y: float, words: str, size: float = 14, name: str = "ink", more: str = "") -> str:
    """A line of text. more: further attributes, such as those below."""
    return f'<text x="{x:g}" y="{y:g}" font-size="{size:g}" {colour(name)} {more}>{escape(words)}</text>'


MIDDLE, END, BOLD = 'text-anchor="middle"', 'text-anchor="end"', 'font-weight="bold"'


def path(steps: str, stroke: str, width: float = 1.5, more: str = "") -> str:
    """A line. steps: as SVG writes them."""
    return f'<path d="{steps}" stroke-width="{width:g}" {colour("none", stroke)} {more}/>'


def curve(x0: float, y0: float, x1: float, y1: float, stroke: str, width: float = 1.5) -> str:
    """A line that leaves and comes in level."""
    middle = (x0 + x1) / 2
    return path(f"M{x0:g} {y0:g} C{middle:g} {y0:g} {middle:g} {y1:g} {x1:g} {y1:g}", stroke, width)


def box(x: float, y: float, width: float, height: float, fill: str, stroke: str = "edge", line: float = 1) -> str:
    """A box around (x, y). line: width of its outline."""
    place = f'x="{x - width / 2:g}" y="{y - height / 2:g}" width="{width:g}" height="{height:g}"'
    return f'<rect {place} rx="{min(6, height / 4):g}" stroke-width="{line:g}" {colour(fill, stroke)}/>'


def dot(x: float, y: float, radius: float, fill: str, stroke: str = "edge", line: float = 1) -> str:
    return f'<circle cx="{x:g}" cy="{y:g}" r="{radius:g}" stroke-width="{line:g}" {colour(fill, stroke)}/>'


def arrow(x0: float, y0: float, x1: float, y1: float, stroke: str = "faint", more: str = "") -> str:
    """A straight arrow, level or upright."""
    along = (1, 0) if y0 == y1 and x1 > x0 else (-1, 0) if y0 == y1 else (0, 1 if y1 > y0 else -1)
    (dx, dy), size = along, 6
    left = f"{x1 - size * dx + size * dy * 0.7:g} {y1 - size * dy + size * dx * 0.7:g}"
    right = f"{x1 - size * dx - size * dy * 0.7:g} {y1 - size * dy - size * dx * 0.7:g}"
    head = f"M{left} L{x1:g} {y1:g} L{right}"
    return path(f"M{x0:g} {y0:g} L{x1:g} {y1:g}", stroke, 1.5, more) + path(head, stroke, 1.5)
