"""The page with a real server: two ranks of the demo model, one of which is killed while it writes."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect

from tests.launch import commands
from tests.page.actions import ENDED, answer, ask
from tests.page.conftest import Visit
from tests.page.server import address

START_MS = 240_000
PROMPT = "def fibonacci(n):"
ARGUMENTS = ["launcher=local", "parallel.ranks=2", "server.port=0", "server.page_kills_ranks=true"]
ARGUMENTS += ["parallel.delay_us=20000"]  # so slow that a rank is killed during a text


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of the server. Its log is read to the end by nobody, so it goes to a file."""
    log = tmp_path_factory.mktemp("server") / "log"
    with log.open("wb") as file:
        command = commands.command("serve", ARGUMENTS)
        process = subprocess.Popen(command, cwd=log.parent, env=commands.environment(), stdout=file, stderr=file)
    try:
        yield address(process, log)
    finally:
        process.terminate()
        process.wait(60)


def set_up(page: Page, method: str, tokens: int) -> None:
    expect(page.locator('.rank[data-state="serving"]')).to_have_count(2, timeout=START_MS)
    page.locator("#settings summary").click()
    page.get_by_label("Method").select_option(method)
    page.locator("#max-tokens").fill(str(tokens))


def test_a_chat_and_its_trees(visit: Visit, url: str) -> None:
    page = visit(url)
    set_up(page, "lookahead", 60)
    ask(page, PROMPT)
    assert len(answer(page)) > 60
    expect(page.locator("#legend")).to_contain_text("rank 1")
    expect(page.locator("#legend")).to_contain_text("window")
    expect(page.locator("#figures-body")).to_contain_text("columns")
    page.locator("#step").fill("3")
    expect(page.locator("#tree-title")).to_contain_text("Step 4 of ")
    expect(page.locator(".node text").first).not_to_contain_text("#")
    assert page.locator(".node").count() > 10


def test_a_rank_is_killed_and_the_text_goes_on(visit: Visit, url: str) -> None:
    page = visit(url)
    set_up(page, "autoregressive", 400)
    ask(page, PROMPT)
    undisturbed = answer(page)
    page.get_by_role("button", name="New chat").click()
    ask(page, PROMPT, waits=False)
    expect(page.locator(".run").nth(5)).to_be_visible()
    page.get_by_role("button", name="Kill rank 1").click()
    expect(page.locator(".rank").nth(1)).not_to_have_attribute("data-state", "serving")
    expect(page.locator("#ranks-note")).to_contain_text("The text goes on")
    expect(page.locator(".turn")).to_have_attribute("data-state", ENDED, timeout=START_MS)
    assert answer(page) == undisturbed and len(undisturbed) > 400
    expect(page.locator("#ranks-note")).to_have_text("Rank 1 is back.", timeout=START_MS)


def test_two_methods_race(visit: Visit, url: str) -> None:
    page = visit(url)
    expect(page.locator('.rank[data-state="serving"]')).to_have_count(2, timeout=START_MS)
    page.get_by_role("button", name="Race").click()
    page.locator("#race-message").fill(PROMPT)
    page.locator("#race-tokens").fill("60")
    page.get_by_role("button", name="Start").click()
    expect(page.locator("#race-result")).to_contain_text("Both texts are the same", timeout=START_MS)
