"""Two methods race: apart and together, stopped, and refused."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from tests.page.conftest import Visit
from tests.page.mock import Mock


def race(page: Page) -> None:
    page.get_by_role("button", name="Race").click()
    page.get_by_role("button", name="Start").click()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1440])
def test_two_methods_race(visit: Visit, mock: Mock, width: int, scheme: str) -> None:
    page = visit(mock.url, width, color_scheme=scheme)
    race(page)
    expect(page.locator("#race-result")).to_contain_text("auto finished first")
    expect(page.locator("#race-result")).to_contain_text("Both texts are the same")
    expect(page.locator("#race-note")).to_contain_text("Each runs alone")
    texts = page.locator(".lane-text").all_inner_texts()
    assert texts[0] == texts[1] and "fibonacci" in texts[0]
    methods = [(body["decode"]["method"], body["max_tokens"]) for body in mock.bodies]
    assert methods == [("autoregressive", 1), ("autoregressive", 128), ("auto", 128)], (
        "the prompt first, then each alone"
    )
    assert page.locator(".lane-speed").all_inner_texts()[1].endswith("tokens/s")
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_both_at_once_says_what_that_means(visit: Visit, mock: Mock) -> None:
    page = visit(mock.url)
    page.get_by_role("button", name="Race").click()
    page.locator("#race-way").select_option("together")
    expect(page.locator("#race-note")).to_contain_text("slows the other down")
    page.get_by_role("button", name="Start").click()
    expect(page.locator("#race-result")).to_contain_text("finished first")
    assert {body["decode"]["method"] for body in mock.bodies} == {"autoregressive", "auto"} and len(mock.bodies) == 2


def test_a_race_is_stopped(visit: Visit, mock: Mock) -> None:
    mock.step_s = 0.2
    page = visit(mock.url)
    race(page)
    first, second = page.locator(".lane").all()
    expect(first).to_contain_text("Is measured, alone on this server")
    expect(second).to_contain_text("Waits until the other lane is measured")
    page.get_by_role("button", name="Stop").click()
    expect(page.get_by_role("button", name="Start")).to_be_visible()
    expect(page.locator("#race-result")).to_have_text("")


@pytest.mark.parametrize("height", [640, 844])
def test_both_lanes_are_in_view_on_a_phone(visit: Visit, mock: Mock, height: int) -> None:
    page = visit(mock.url, 360, height, has_touch=True)
    page.get_by_role("button", name="Race").click()
    assert page.locator(".lane-text").all_inner_texts() == ["The text appears here."] * 2
    page.get_by_role("button", name="Start").click()
    expect(page.locator("#race-result")).to_contain_text("Both texts are the same")
    for lane in page.locator(".lane").all():
        box = lane.bounding_box()
        assert box and box["y"] >= 0 and box["y"] + box["height"] <= height and box["height"] >= 80


def test_a_refusal_is_told(visit: Visit, mock: Mock) -> None:
    page = visit(mock.url)
    mock.key = "secret"
    race(page)
    expect(page.locator("#race-result")).to_contain_text("key is missing or wrong")
