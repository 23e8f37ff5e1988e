"""The common look of all plots: small, on white, in colours that colour-blind readers can tell apart."""

from __future__ import annotations

from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

# Okabe and Ito's palette, in an order in which neighbours differ in lightness too.
COLOURS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#f0e442"]
# Series also differ in shape, for prints in grey.
MARKERS = ["o", "s", "^", "D", "v", "P", "X", "*"]
# "svg.fonttype" keeps text as text; with the fixed salt the same figures always make the same file.
STYLE: Any = {
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e0e0e0",
    "grid.linewidth": 0.6,
    "lines.linewidth": 1.4,
    "lines.markersize": 5,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "svg.fonttype": "none",
    "svg.hashsalt": "lookahead",
}


def make_axes(
    num_panels: int = 1, width: float = 6.4, height: float = 3.6, shares_y: bool = True
) -> tuple[Figure, list[Axes]]:
    """A figure with panels side by side. Sizes are in inches. shares_y: whether the panels have the same y axis."""
    matplotlib.rcParams.update(STYLE)
    figure = Figure(figsize=(width, height), layout="constrained")
    panels = figure.subplots(1, num_panels, sharey=shares_y, squeeze=False)
    return figure, list(panels[0])
