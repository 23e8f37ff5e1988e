"""Steps are replayed: by slider, keys, clicks and by themselves, with their trees and figures."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from tests.page import recording
from tests.page.actions import ask, slider
from tests.page.conftest import Visit
from tests.page.mock import Mock

STEPS = list(recording.steps(recording.TEXT, "auto", recording.Vocabulary()))


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1440])
def test_every_step_has_its_tree(visit: Visit, mock: Mock, width: int, scheme: str) -> None:
    page = visit(mock.url, width, color_scheme=scheme)
    ask(page, "Write a function.")
    if width == 360:
        page.get_by_role("button", name="Tree").click()
    page.get_by_role("slider", name="Step").focus()
    page.keyboard.press("Home")
    for number in (0, 1, 2, 3):
        _, trace = STEPS[number]
        expect(page.locator("#tree-title")).to_have_text(f"Step {number + 1} of {len(STEPS)}")
        expect(page.locator(".node:not(.node-next)")).to_have_count(len(trace["tokens"]))
        expect(page.locator(".node-lit")).to_have_count(1 + len(trace["accepted"]))
        expect(page.locator(".link-lit")).to_have_count(len(trace["accepted"]))
        expect(page.locator(".node.rank-1")).to_have_count(trace["ranks"].count("1"))
        page.keyboard.press("ArrowRight")
    assert slider(page) == 4
    expect(page.locator("#tree-title")).to_have_text(f"Step 5 of {len(STEPS)}")  # it is drawn with the next frame
    expect(page.locator(".node:not(.node-next)")).to_have_count(len(STEPS[4][1]["tokens"]))
    box = page.locator(".node-lit").last.bounding_box()
    assert box and box["x"] + box["width"] <= width, "the accepted path is in view"


def test_labels_are_texts_of_tokens(visit: Visit, mock: Mock) -> None:
    page = visit(mock.url)
    ask(page, "Write a function.")
    page.locator("#step").fill("1")
    expect(page.locator(".node-lit text")).to_have_text(["Here", "is", "a"])
    expect(page.locator(".node-next text")).to_have_text("function")
    expect(page.locator("#legend")).to_contain_text("window 10")


def test_it_is_said_who_verified_and_who_drafted_for_what(visit: Visit, mock: Mock) -> None:
    page = visit(mock.url)
    ask(page, "Write a function.")
    expect(page.locator(".rank-role").first).to_be_hidden()
    mock.drafts_ahead = True
    ask(page, "Once more.")
    page.locator("#step").fill("1")
    expect(page.locator(".rank-role").first).to_have_text("verified")
    expect(page.locator(".rank-role").nth(1)).to_have_text(
        re.compile("^drafted for .+ → .+, a → function \\(came true\\)$")
    )


def test_later_text_is_dimmed_and_a_click_leads_to_its_step(visit: Visit, mock: Mock) -> None:
    page = visit(mock.url)
    ask(page, "Write a function.")
    assert page.locator(".run-later").count() == 0
    page.locator('.run[data-step="7"]').first.click()
    expect(page.locator("#tree-title")).to_have_text(f"Step 8 of {len(STEPS)}")
    expect(page.locator(".run-shown").first).to_have_attribute("data-step", "7")
    later = page.locator(".run-later").evaluate_all("all => all.map(one => Number(one.dataset.step))")
    assert min(later) == 8


def test_it_plays_to_the_end_and_pauses(visit: Visit, mock: Mock) -> None:
    page = visit(mock.url)
    ask(page, "Write a function.")
    page.get_by_label("Speed of the replay").select_option("measured")
    page.get_by_role("button", name="Play", exact=True).click()
    expect(page.get_by_role("button", name="Pause")).to_be_visible()
    expect(page.get_by_role("button", name="Play", exact=True)).to_be_visible()
    assert slider(page) == len(STEPS) - 1
    page.get_by_label("Speed of the replay").select_option("2")
    page.get_by_role("button", name="Play", exact=True).click()
    page.get_by_role("button", name="Pause").click()
    assert slider(page) < len(STEPS) - 1


def test_figures_are_those_of_the_step(visit: Visit, mock: Mock) -> None:
    page = visit(mock.url)
    ask(page, "Write a function.")
    page.locator("#step").fill("8")
    tokens = sum(len(trace["emitted"]) for _, trace in STEPS[:9])
    tiles = page.locator(".tile")
    expect(tiles.filter(has_text="tokens per step")).to_contain_text(f"{tokens / 9:.2f}")
    expect(page.locator("#figures-body")).to_contain_text("5 columns × 2 levels")
    expect(page.locator("#figures-body")).to_contain_text("by the curve")
    assert page.locator(".plot").count() == 3


def test_an_earlier_answer_is_replayed(visit: Visit, mock: Mock) -> None:
    page = visit(mock.url)
    ask(page, "One")
    ask(page, "Two")
    page.get_by_label("Question 1").get_by_role("button", name="Replay").click()
    expect(page.locator(".turn").first).to_have_class("turn turn-shown")
    expect(page.get_by_role("button", name="Pause")).to_be_visible()
