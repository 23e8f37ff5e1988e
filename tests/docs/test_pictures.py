"""The pictures in docs/pictures are what their scripts draw, from the project's own code."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree

import pytest

from docs.pictures import (
    draw_drafts,
    draw_epoch,
    draw_forest,
    draw_methods,
    draw_noise,
    draw_request,
    draw_stream,
    story,
)
from docs.pictures.__main__ import FOLDER, NAMES, draw
from lp.tree import PREFIX
from tests.docs.links import ROOT

PLOTTED = {"speed"}  # by matplotlib, whose every version draws other files
DARK = {"stream"}  # a dark card wherever it is shown


@pytest.mark.parametrize("name", NAMES)
def test_a_picture_is_svg_with_a_title_and_a_background(name: str):
    text = (FOLDER / f"{name}.svg").read_text(encoding="utf-8")
    assert ElementTree.fromstring(text).tag == "{http://www.w3.org/2000/svg}svg"
    assert re.search(r"fill[=:]\W*#ffffff", text) or name in DARK
    assert name in PLOTTED or "<title>" in text
    assert name in PLOTTED | DARK or "prefers-color-scheme:dark" in text


@pytest.mark.parametrize("name", sorted(set(NAMES) - PLOTTED))
def test_a_picture_is_drawn_as_committed(name: str):
    assert draw(name) == (FOLDER / f"{name}.svg").read_text(encoding="utf-8")


def test_there_is_no_picture_without_a_script():
    assert {file.stem for file in FOLDER.glob("*.svg")} == set(NAMES)


def test_the_step_is_a_step_of_the_project():
    """Both parts together hold all rows, and the accepted rows are a path of the tree whose tokens are emitted."""
    step = story.chosen_step()
    assert sorted(set(step.parts[0]) | set(step.parts[1])) == list(range(len(step.tree)))
    parents = step.tree.parents.tolist()
    assert [parents[row] for row in step.accepted] == [PREFIX, *step.accepted[:-1]]
    assert step.tree.tokens[step.accepted[1:]].tolist() == step.emitted[:-1]


def test_the_forest_has_all_rows_on_the_ranks():
    batch = draw_forest.placed()
    rows = [len(step.tree) or step.num_computed for step in batch.inputs]
    *trees, prompt = batch.taken
    assert all(sum(of_ranks.values()) >= number for of_ranks, number in zip(trees, rows, strict=False))
    assert set(prompt.values()) == {rows[-1]}
    loads = [0, 0]
    for taken, lacked in zip(batch.taken, batch.lacked, strict=True):
        for rank, number in taken.items():
            loads[rank] += number + lacked.get(rank, 0)
    assert loads == batch.loads


def test_the_killed_rank_is_in_the_first_and_the_last_epoch():
    members = [set(members) for _, members, _ in draw_epoch.tell().epochs]
    assert members == [{0, 1, 2}, {0, 2}, {0, 1, 2}]


def test_the_best_number_of_drafts_is_at_the_top_of_its_curve():
    for load in draw_drafts.LOADS:
        found, best = draw_drafts.speeds(load)
        assert found[best] == found.max()
        assert 0 < best < len(found) - 1


def test_the_methods_of_the_picture_of_noise_yield_one_text():
    assert {sum(tokens) for tokens in draw_noise.STEPS.values()} == {len(draw_noise.chosen())}


def test_the_way_of_a_request_names_files_that_exist():
    for file, _ in draw_request.WAY:
        assert (ROOT / file).is_file()


def test_the_speed_is_drawn_from_the_results():
    """The committed chart has the names, figures and machine of a chart drawn now, whatever version draws it."""
    pytest.importorskip("matplotlib")
    from docs.pictures import draw_speed

    drawn = draw_speed.draw_figure()
    committed = (FOLDER / "speed.svg").read_text(encoding="utf-8")
    measured = [draw_speed.read(dtype) for dtype in draw_speed.COLOURS]
    assert len(drawn.axes) == 2
    for axes in drawn.axes:
        legend = axes.get_legend()
        for label in [*axes.texts, *(legend.get_texts() if legend else [])]:
            assert label.get_text() in committed
    for name in draw_speed.METHODS.values():
        assert name in committed
    assert draw_speed.describe(measured) in committed
    assert f"{measured[0].speed_up('auto', draw_speed.GENERATE):.2f}x" in committed


def test_the_streams_are_one_text_and_every_run_appears_in_its_time():
    recorded = draw_stream.read()
    lanes = {name: draw_stream.runs_of(recorded, name) for name in draw_stream.METHODS}
    assert len({"".join(run.text for run in runs) for runs in lanes.values()}) == 1
    assert {run.num_tokens for run in lanes["autoregressive"]} == {1}
    drawn = ElementTree.fromstring(draw_stream.OUTPUT.read_text(encoding="utf-8"))
    text = "".join(drawn.itertext())
    for runs in lanes.values():
        tokens, ends = sum(run.num_tokens for run in runs), [run.end_s for run in runs]
        assert ends == sorted(ends) and f"{tokens} tokens in {len(runs)} steps" in text
    shown = [re.search(r"r1-(\d+)", each.get("class", "")) for each in drawn.iter()]
    with_text = {place for place, run in enumerate(lanes["auto"]) if run.text.strip("\n")}
    assert with_text <= {int(found[1]) for found in shown if found}
    assert "prefers-reduced-motion" in text and "http" not in text  # it loads nothing from elsewhere


def test_runs_are_laid_out_in_lines():
    first, second = draw_stream.Run("ab\nc", 2, 0.0), draw_stream.Run("d" * draw_stream.CHARACTERS, 3, 1.0)
    pieces = draw_stream.lay_out([first, second])
    assert pieces == [
        [(0, 0, "ab"), (1, 0, "c")],
        [(1, 1, "d" * (draw_stream.CHARACTERS - 1)), (2, 0, "d")],
    ]


def test_every_method_is_drawn_at_one_place_and_yields_the_same_text():
    """The methods' trees have one root, and what one of them emits is where another's text begins."""
    words = sorted(set(story.TEXT.split()))
    tokens = [words.index(word) for word in story.TEXT.split()]
    steps = {settings.method: draw_methods.plan(settings, tokens) for settings, _ in draw_methods.SHOWN}
    assert len({int(step.tree.tokens[0]) for step in steps.values()}) == 1
    longest = max((step.accepted.tokens for step in steps.values()), key=len)
    assert all(step.accepted.tokens == longest[: len(step.accepted.tokens)] for step in steps.values())
    assert len(steps["autoregressive"].tree) == 1 and len(steps["jacobi"].tree) == 6
    assert len(steps["lookahead"].cells) == 3 * steps["lookahead"].columns == 12
