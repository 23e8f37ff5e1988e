"""Nothing keeps people from using the page: axe finds no serious fault, and motion is spared where it is not wanted."""

from __future__ import annotations

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect

from tests.page.actions import ask
from tests.page.conftest import Visit
from tests.page.mock import Mock

SERIOUS = ("serious", "critical")


def faults(page: Page) -> list[str]:
    violations = Axe().run(page).response["violations"]
    return [
        f"{one['id']}: {node['target']} {node['failureSummary']}"
        for one in violations
        if one["impact"] in SERIOUS
        for node in one["nodes"]
    ]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1440])
def test_axe_finds_nothing_serious(visit: Visit, mock: Mock, width: int, scheme: str) -> None:
    mock.may_kill = True
    page = visit(mock.url, width, color_scheme=scheme)
    expect(page.locator("#model")).to_have_text("a-model")
    assert faults(page) == []
    ask(page, "Hello")
    page.locator("#settings summary").click()
    assert faults(page) == []
    if width == 360:
        for panel in ("Tree", "Figures"):
            page.get_by_role("button", name=panel).click()
            assert faults(page) == []
    page.get_by_role("button", name="Race").click()
    page.get_by_role("button", name="Start").click()
    expect(page.locator("#race-result")).to_contain_text("first")
    assert faults(page) == []


def test_axe_finds_nothing_in_the_dialog(visit: Visit, mock: Mock) -> None:
    mock.key = "secret"
    page = visit(mock.url)
    expect(page.get_by_role("dialog")).to_be_visible()
    assert faults(page) == []


def test_the_colours_are_chosen_and_kept(visit: Visit, mock: Mock) -> None:
    page = visit(mock.url, color_scheme="light")
    background = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(background)
    button = page.get_by_role("button", name="Colours")
    button.click()
    assert page.evaluate(background) == light
    button.click()
    dark = page.evaluate(background)
    assert dark != light
    page.reload()
    assert page.evaluate(background) == dark


def test_motion_is_spared(visit: Visit, mock: Mock) -> None:
    mock.step_s = 0.1
    page = visit(mock.url, reduced_motion="reduce")
    ask(page, "Hello", waits=False)
    expect(page.locator(".is-writing .run").first).to_be_visible()
    assert page.evaluate("document.getAnimations().length") == 0
