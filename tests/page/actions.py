"""What people do on the page."""

from __future__ import annotations

import re

from playwright.sync_api import Page, expect

ENDED = re.compile("done|stopped|failed")


def ask(page: Page, text: str, waits: bool = True) -> None:
    """Sends a message, and waits until its answer is whole."""
    page.get_by_role("textbox", name="Your message").fill(text)
    page.get_by_role("button", name="Send").click()
    if waits:
        expect(page.locator(".turn").last).to_have_attribute("data-state", ENDED, timeout=120_000)
        expect(page.locator("#stop")).to_be_hidden()


def answer(page: Page, number: int = -1) -> str:
    """The text of an answer, as it is shown."""
    return page.locator(".turn .answer-text").nth(number).inner_text()


def slider(page: Page) -> int:
    return int(page.locator("#step").input_value())
