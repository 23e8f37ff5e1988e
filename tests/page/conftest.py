"""A browser for all tests of the page, and pages that may ask nobody but their server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from tests.page.install import find_system_browser
from tests.page.mock import Mock, running

WAIT_MS = 60_000

Visit = Callable[..., Page]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "tests/page/" in item.path.as_posix():
            item.add_marker(pytest.mark.page)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    expect.set_options(timeout=WAIT_MS)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_system_browser())
        yield browser
        browser.close()


@pytest.fixture
def mock() -> Iterator[Mock]:
    with running(Mock()) as mock:
        yield mock


@pytest.fixture
def visit(browser: Browser) -> Iterator[Visit]:
    """Opens the page at an address, in a browser that has never been there. At the end, it must have asked nobody else
    and met no error of its own.
    """
    contexts, hosts, faults = [], set(), []

    def open_page(url: str, width: int = 1440, height: int = 900, script: str = "", **options) -> Page:
        context = browser.new_context(viewport={"width": width, "height": height}, **options)
        contexts.append(context)
        if script:
            context.add_init_script(script)
        page = context.new_page()
        page.set_default_timeout(WAIT_MS)
        page.on("request", lambda request: hosts.add(urlsplit(request.url).netloc))
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("console", lambda message: "Policy" in message.text and faults.append(message.text))
        page.goto(url)
        allowed.add(urlsplit(url).netloc)
        return page

    allowed: set[str] = set()
    yield open_page
    for context in contexts:
        context.close()
    assert hosts <= allowed, "the page has asked somebody else"
    assert not faults
