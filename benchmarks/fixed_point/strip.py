"""Draws the iterates of one block as an SVG picture: a panel for each way to solve it, a line for each call.

Lines appear one after another, the same call in all panels at once, and then stay. Knows nothing of models.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

from benchmarks.fixed_point.iterations import Iterate

CELL_W, CELL_H, GAP = 50, 22, 2
MARGIN, TITLE_H, PANEL_GAP, LABEL_W = 20, 58, 28, 44
MOST_LETTERS = 7
SECONDS_A_CALL, SECONDS_AT_END = 0.5, 4.0
INK, FAINT = "#1f2933", "#5b6770"
SETTLED, RIGHT, WRONG, OPEN = "#7bc8a4", "#f2d06b", "#e4e7eb", "#ffffff"
LEGEND = ((SETTLED, "settled: sure to be right"), (RIGHT, "right, but not known to be"), (WRONG, "wrong"))
FONT = "Helvetica, Arial, 'DejaVu Sans', sans-serif"
TITLE = "A block of tokens on its way to the fixed point, which is greedy decoding's text"


@dataclass(frozen=True)
class Panel:
    """Where a panel lies. x, y: its corner. name: the way to solve the block. told: what the way does, in one line."""

    x: float
    y: float
    name: str
    told: str
    iterates: Sequence[Iterate]

    @property
    def height(self) -> float:
        return _height(self.iterates)


def draw(solved: Mapping[str, Sequence[Iterate]], words: Mapping[int, str], told: Mapping[str, str]) -> str:
    """The whole picture. solved: the iterates by the name of the way; all end with the same tokens. words: the text
    of each token. told: what each way does.
    """
    panels, width, height = _place(solved, told)
    most_calls = max(len(iterates) for iterates in solved.values()) - 1
    truth = [token for token in next(iter(solved.values()))[-1].tokens if token is not None]
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" font-family="{FONT}">',
        f"<title>{TITLE}</title>",
        f"<style>{_style(most_calls)}</style>",
        f'<rect width="{width:g}" height="{height:g}" rx="8" fill="#ffffff"/>',
    ]
    for panel in panels:
        lines += _panel(panel, truth, words)
    return "\n".join([*lines, *_legend(height - MARGIN), "</svg>\n"])


def _place(solved: Mapping[str, Sequence[Iterate]], told: Mapping[str, str]) -> tuple[list[Panel], float, float]:
    """The panels, two side by side, and the picture's width and height."""
    num_tokens = len(next(iter(solved.values()))[0].tokens)
    panel_width = LABEL_W + num_tokens * (CELL_W + GAP)
    panels: list[Panel] = []
    y = float(MARGIN)
    entries = list(solved.items())
    for pair in (entries[start : start + 2] for start in range(0, len(entries), 2)):
        for column, (name, iterates) in enumerate(pair):
            panels.append(Panel(MARGIN + column * (panel_width + PANEL_GAP), y, name, told[name], iterates))
        y += max(_height(iterates) for _, iterates in pair) + PANEL_GAP
    num_columns = min(2, len(entries))
    return panels, 2 * MARGIN + num_columns * panel_width + (num_columns - 1) * PANEL_GAP, y + MARGIN


def _height(iterates: Sequence[Iterate]) -> float:
    return TITLE_H + len(iterates) * (CELL_H + GAP)


def _style(most_calls: int) -> str:
    """Each line has its moment in one animation that repeats; readers who want no motion see all lines at once."""
    length = most_calls * SECONDS_A_CALL + SECONDS_AT_END
    rules = ["@media (prefers-reduced-motion: no-preference) {"]
    for call in range(1, most_calls + 1):
        begin = 100 * call * SECONDS_A_CALL / length
        rules.append(
            f"@keyframes c{call} {{ 0%, {begin:.2f}% {{ opacity: 0 }} {begin + 0.5:.2f}%, 100% {{ opacity: 1 }} }}"
        )
        rules.append(f".c{call} {{ animation: c{call} {length:g}s infinite }}")
    return "\n".join([*rules, "}"])


def _panel(panel: Panel, truth: Sequence[int], words: Mapping[int, str]) -> list[str]:
    num_calls, num_rows = len(panel.iterates) - 1, sum(iterate.num_rows for iterate in panel.iterates)
    calls = f"{num_calls} calls of the model, {num_rows} rows"
    lines = [
        f'<text x="{panel.x:g}" y="{panel.y + 14:g}" font-size="15" font-weight="bold" fill="{INK}">'
        f'{escape(panel.name)}<tspan font-weight="normal" fill="{FAINT}">  {calls}</tspan></text>',
        f'<text x="{panel.x:g}" y="{panel.y + 34:g}" font-size="13" fill="{FAINT}">{escape(panel.told)}</text>',
    ]
    for call, iterate in enumerate(panel.iterates):
        y = panel.y + TITLE_H - 14 + call * (CELL_H + GAP)
        label = f"call {call}" if call else "guess"
        lines += [
            f'<g class="c{call}">',
            f'<text x="{panel.x:g}" y="{y + 15:g}" font-size="11" fill="{FAINT}">{label}</text>',
            *_cells(panel.x + LABEL_W, y, iterate, truth, words),
            "</g>",
        ]
    return lines


def _cells(x: float, y: float, iterate: Iterate, truth: Sequence[int], words: Mapping[int, str]) -> Iterable[str]:
    for place, (token, is_right) in enumerate(zip(iterate.tokens, iterate.right(truth), strict=True)):
        fill = SETTLED if place < iterate.num_settled else OPEN if token is None else RIGHT if is_right else WRONG
        left = x + place * (CELL_W + GAP)
        stroke = ' stroke="#cfd6dc"' if token is None else ""
        yield f'<rect x="{left:g}" y="{y:g}" width="{CELL_W}" height="{CELL_H}" rx="3" fill="{fill}"{stroke}/>'
        if token is not None:
            where = f'x="{left + CELL_W / 2:g}" y="{y + 15:g}" text-anchor="middle"'
            yield f'<text {where} font-size="11" fill="{INK}">{escape(_shown(words[token]))}</text>'


def _shown(word: str) -> str:
    """A token's text with its white space made visible, cut to a cell's width."""
    shown = word.replace("\n", "⏎").replace("\t", "⇥")
    shown = shown if shown.strip() else "␣" * min(len(shown), MOST_LETTERS)
    shown = "".join(letter if letter.isprintable() else "·" for letter in shown.strip())
    return shown if len(shown) <= MOST_LETTERS else f"{shown[: MOST_LETTERS - 1]}…"


def _legend(y: float) -> list[str]:
    lines = []
    for number, (colour, meaning) in enumerate(LEGEND):
        x = MARGIN + 220 * number
        lines.append(f'<rect x="{x}" y="{y - 11:g}" width="16" height="14" rx="3" fill="{colour}"/>')
        lines.append(f'<text x="{x + 24}" y="{y:g}" font-size="12" fill="{FAINT}">{meaning}</text>')
    return lines
