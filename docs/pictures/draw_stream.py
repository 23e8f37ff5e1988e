"""Draws docs/pictures/stream.svg, two streams of one answer side by side: `python -m docs.pictures.draw_stream`.

Left, autoregressive decoding adds a token a step; right, decode=auto adds runs, each in a colour of its own. It draws
what lies in stream.json. `python -m docs.pictures.draw_stream --record` decodes the answer anew by both methods with
SmolLM2-135M-Instruct (downloaded if need be), several times in turn, and keeps the tokens and the seconds of each
method's fastest run. Both texts must be the same. The seconds are processor time of the one thread that computes, which
is what a clock shows on an idle machine, so that other programs do not count.
"""

from __future__ import annotations

import html
import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

OUTPUT = Path(__file__).with_name("stream.svg")
RECORD = Path(__file__).with_name("stream.json")

QUESTION = "Write a Python class for a bank account with deposit, withdraw and a balance."
MAX_NEW_TOKENS, ROUNDS = 124, 3
METHODS = ("autoregressive", "auto")
# Seconds of the picture for each second of the run, and seconds for which the whole texts stay.
SLOWED, REST_S = 4.0, 4.0

# Geometry in pixels.
WIDTH, MARGIN, GAP = 1000, 24, 28
PANEL = (WIDTH - 2 * MARGIN - GAP) / 2
CHARACTERS, SIZE = 58, 13
ADVANCE, LINE = PANEL / (CHARACTERS + 2), 20
TOP, TEXT_Y = 34, 84

CARD, BORDER, INK, FAINT = "#0d1117", "#30363d", "#e6edf3", "#8b949e"
# Behind runs, in turn.
TINTS = ("#1f6feb", "#2ea043", "#bf8700", "#8957e5", "#db61a2", "#1b9e9e")
ACCENT = "#3fb950"
SANS = "Helvetica, Arial, 'DejaVu Sans', sans-serif"
MONO = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace"


@dataclass(frozen=True)
class Run:
    """What one step added. end_s: seconds of processor time from the first step's tokens to its own."""

    text: str
    num_tokens: int
    end_s: float


def record() -> dict[str, Any]:
    """Decodes the answer by both methods."""
    from launch.config import resources
    from lp import Auto, Autoregressive, Engine
    from lp.model.gguf import checkpoint_folder
    from lp.platform.processor import processor_name
    from lp.request import DecodingMethod

    folder = checkpoint_folder(resources.resolve(resources.SMOLLM2))
    engine = Engine.from_pretrained(str(folder), dtype="bfloat16", index="off")
    methods: tuple[DecodingMethod, ...] = (Autoregressive(), Auto())
    best: dict[str, list[Run]] = {}
    for _ in range(ROUNDS):
        for name, decode in zip(METHODS, methods, strict=True):
            runs = stream(engine, decode)
            if name not in best or runs[-1].end_s < best[name][-1].end_s:
                best[name] = runs
    texts = {name: "".join(run.text for run in runs) for name, runs in best.items()}
    assert len(set(texts.values())) == 1, texts
    return {
        "model": "SmolLM2-135M-Instruct",
        "dtype": "bfloat16",
        "processor": processor_name(),
        "threads": 1,
        "question": QUESTION,
        "runs": {
            name: [[run.text, run.num_tokens, round(run.end_s, 4)] for run in runs] for name, runs in best.items()
        },
    }


def stream(engine: Any, decode: Any) -> list[Run]:
    """One answer: the runs of its steps. The prompt's forward is not counted."""
    runs: list[Run] = []
    began = None
    messages = [{"role": "user", "content": QUESTION}]
    for output in engine.stream(messages, decode=decode, max_new_tokens=MAX_NEW_TOKENS, temperature=0.0):
        now = time.process_time()
        began = now if began is None else began
        runs.append(Run(output.text, len(output.tokens), now - began))
    return runs


def read() -> dict[str, Any]:
    """The recorded streams."""
    return json.loads(RECORD.read_text(encoding="utf-8"))


def runs_of(recorded: dict[str, Any], method: str) -> list[Run]:
    return [Run(*values) for values in recorded["runs"][method]]


def lay_out(runs: list[Run]) -> list[list[tuple[int, int, str]]]:
    """Returns the pieces of each run: line, column and text without line ends. Long lines are broken at a character."""
    placed, line, column = [], 0, 0
    for run in runs:
        pieces: list[tuple[int, int, str]] = []
        for character in run.text:
            if character == "\n" or column == CHARACTERS:
                line, column = line + 1, 0
            if character == "\n":
                continue
            if pieces and pieces[-1][0] == line:
                pieces[-1] = (line, pieces[-1][1], pieces[-1][2] + character)
            else:
                pieces.append((line, column, character))
            column += 1
        placed.append(pieces)
    return placed


def draw() -> str:
    """The whole picture as SVG text."""
    recorded = read()
    lanes = {name: runs_of(recorded, name) for name in METHODS}
    slowest_s = max(runs[-1].end_s for runs in lanes.values())
    total_s = slowest_s * SLOWED + REST_S
    pieces = {name: lay_out(runs) for name, runs in lanes.items()}
    num_lines = 1 + max(line for placed in pieces.values() for run in placed for line, _, _ in run)
    height = TEXT_Y + LINE * num_lines + 58
    speed_up = lanes[METHODS[0]][-1].end_s / lanes[METHODS[1]][-1].end_s
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="{SANS}">',
        f"<title>The same answer by autoregressive decoding and by auto, which is {speed_up:.1f} times as fast</title>",
        f"<style>{_style(lanes, total_s)}</style>",
        f'<rect x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1}" rx="10" fill="{CARD}" stroke="{BORDER}"/>',
        f'<path d="M{WIDTH / 2} 20 V{height - 44}" stroke="{BORDER}"/>',
    ]
    for number, name in enumerate(METHODS):
        x = MARGIN + number * (PANEL + GAP)
        parts += _lane(name, number, lanes[name], pieces[name], x, TEXT_Y + LINE * num_lines)
    note = (
        f"{recorded['model']}, {recorded['dtype']}, one thread of an {recorded['processor']}: processor time, "
        f"shown {SLOWED:g} times slower. The two texts are the same."
    )
    parts.append(_text(MARGIN, height - 16, note, 12, FAINT))
    return "\n".join([*parts, "</svg>\n"])


def _style(lanes: dict[str, list[Run]], total_s: float) -> str:
    """The rules of the animation: each run is hidden until its step has ended. Without animation all is shown."""
    rules = [f".a{{animation:{total_s:.2f}s infinite step-end}}", f".b{{animation:{total_s:.2f}s infinite linear}}"]
    for number, runs in enumerate(lanes.values()):
        for place, run in enumerate(runs):
            share = 100 * run.end_s * SLOWED / total_s
            name = f"r{number}-{place}"
            rules.append(
                f"@keyframes {name}{{0%{{opacity:0}}{share:.2f}%,to{{opacity:1}}}}.{name}{{animation-name:{name}}}"
            )
        end = 100 * runs[-1].end_s * SLOWED / total_s
        rules.append(
            f"@keyframes bar{number}{{0%{{transform:scaleX(0)}}{end:.2f}%,to{{transform:none}}}}"
            f".bar{number}{{animation-name:bar{number};transform-origin:{MARGIN + number * (PANEL + GAP):g}px 0}}"
        )
    return "".join(rules) + "@media(prefers-reduced-motion:reduce){.a,.b{animation:none}}"


def _lane(
    name: str, number: int, runs: list[Run], placed: list[list[tuple[int, int, str]]], x: float, bottom: float
) -> list[str]:
    """One method: its name, its runs as they come, and its figures at the end."""
    tokens, seconds = sum(run.num_tokens for run in runs), runs[-1].end_s
    counted = tokens - runs[0].num_tokens  # the clock starts with the first step's tokens
    lines = [
        _text(x, TOP, name if number == 0 else "lookahead-parallel: auto", 16, INK, 'font-weight="bold"'),
        _text(x, TOP + 20, "one token a step" if number == 0 else "a colour for the tokens of each step", 12, FAINT),
    ]
    for place, pieces in enumerate(placed):
        if not pieces:
            continue
        inner = []
        for line, column, text in pieces:
            left, base = x + ADVANCE * (column + 0.5), TEXT_Y + LINE * line
            width = ADVANCE * len(text)
            if number and runs[place].num_tokens > 1:
                tint = TINTS[place % len(TINTS)]
                inner.append(
                    f'<rect x="{left - 1:.1f}" y="{base - 14}" width="{width + 1:.1f}" height="{LINE - 2}" rx="3" '
                    f'fill="{tint}" fill-opacity="0.55"/>'
                )
            if text.strip():
                shown = text.lstrip(" ")
                left += ADVANCE * (len(text) - len(shown))
                shown = shown.rstrip(" ")
                inner.append(
                    f'<text x="{left:.1f}" y="{base}" textLength="{ADVANCE * len(shown):.1f}" '
                    f'lengthAdjust="spacingAndGlyphs">{html.escape(shown, quote=False)}</text>'
                )
        lines.append(
            f'<g class="a r{number}-{place}" font-family="{MONO}" font-size="{SIZE}" fill="{INK}">'
            + "".join(inner)
            + "</g>"
        )
    colour = ACCENT if number else FAINT
    figures = f"{tokens} tokens in {len(runs)} steps, {counted / seconds:.0f} tokens a second"
    figures = _text(x, bottom + 16, figures, 14, colour, 'font-weight="bold"')
    return [
        *lines,
        f'<rect class="b bar{number}" x="{x:g}" y="{bottom - 6:g}" width="{PANEL:.1f}" height="3" rx="1.5" '
        f'fill="{colour}"/>',
        f'<g class="a r{number}-{len(runs) - 1}">{figures}</g>',
    ]


def _text(x: float, y: float, words: str, size: int, colour: str, more: str = "") -> str:
    return (
        f'<text x="{x:g}" y="{y:g}" font-size="{size}" fill="{colour}" {more}>{html.escape(words, quote=False)}</text>'
    )


if __name__ == "__main__":
    if sys.argv[1:] == ["--record"]:
        RECORD.write_text(json.dumps(record(), ensure_ascii=False, indent=0) + "\n", encoding="utf-8")
    elif sys.argv[1:]:
        raise SystemExit(f"{' '.join(sys.argv[1:])} is unknown; use --record or nothing")
    OUTPUT.write_text(draw(), encoding="utf-8")
