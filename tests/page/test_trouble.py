"""Old browsers, old servers, keys, servers that end, and ranks that are killed."""

from __future__ import annotations

from playwright.sync_api import expect

from tests.page.actions import answer, ask
from tests.page.conftest import Visit
from tests.page.mock import Mock, running


def test_a_browser_that_cannot_stream_gets_the_answer_whole(visit: Visit, mock: Mock) -> None:
    page = visit(mock.url, script="delete window.ReadableStream")
    ask(page, "Hello")
    assert "two numbers" in answer(page)
    expect(page.locator(".answer-note")).to_contain_text("cannot read an answer piece by piece")
    assert "stream" not in mock.bodies[-1] and "lookahead_trace" not in mock.bodies[-1]


def test_a_server_without_traces_still_chats(visit: Visit, mock: Mock) -> None:
    mock.has_trace = False
    page = visit(mock.url)
    ask(page, "Hello")
    ask(page, "Again")
    assert "two numbers" in answer(page)
    expect(page.locator(".answer-note").last).to_contain_text("does not tell how it decodes")
    expect(page.locator("#canvas")).to_contain_text("does not tell how it decodes")
    assert ["lookahead_trace" in body for body in mock.bodies] == [True, False, False], "it asks once"


def test_a_model_without_a_chat_template_continues_the_text(visit: Visit, mock: Mock) -> None:
    mock.has_template = False
    page = visit(mock.url)
    ask(page, "def f(")
    expect(page.locator(".answer-note")).to_contain_text("no chat template")
    assert mock.bodies[-1]["prompt"] == "def f("
    assert page.locator(".node").count() > 1


def test_the_key_is_asked_for_and_kept_in_the_tab_alone(visit: Visit, mock: Mock) -> None:
    mock.key = "secret"
    page = visit(mock.url)
    dialog = page.get_by_role("dialog")
    page.get_by_label("API key").fill("wrong")
    page.get_by_role("button", name="Use key").click()
    expect(dialog).to_contain_text("does not know this key")
    page.get_by_label("API key").fill("secret")
    page.get_by_role("button", name="Use key").click()
    expect(dialog).to_be_hidden()
    ask(page, "Hello")
    assert "two numbers" in answer(page)
    assert page.evaluate("sessionStorage.getItem('lookahead-key')") == "secret"
    assert "secret" not in page.evaluate("JSON.stringify(localStorage) + document.cookie + location.href")
    page.reload()
    expect(page.locator("#model")).to_have_text("a-model")
    expect(dialog).to_be_hidden()


def test_a_page_without_the_key_asks_again_when_it_is_needed(visit: Visit, mock: Mock) -> None:
    mock.key = "secret"
    page = visit(mock.url)
    page.get_by_role("button", name="Not now").click()
    ask(page, "Hello")
    expect(page.get_by_role("dialog")).to_be_visible()
    expect(page.locator(".answer-note")).to_contain_text("key is missing or wrong")
    page.keyboard.press("Escape")
    expect(page.get_by_role("textbox", name="Your message")).to_have_value("Hello")


def test_a_server_that_ends_and_comes_back(visit: Visit) -> None:
    with running(Mock(step_s=0.05)) as mock:
        page = visit(mock.url)
        ask(page, "Hello", waits=False)
        expect(page.locator(".run").nth(3)).to_be_visible()
    expect(page.locator(".answer-note")).to_contain_text("broke off")
    expect(page.locator("#banner")).to_contain_text("cannot be reached")
    assert answer(page).startswith("Here is a function")
    with running(Mock(), port=int(mock.url.rpartition(":")[2])) as second:
        expect(page.locator("#banner")).to_have_text("The server is back.")
        ask(page, "And now?")
        assert "two numbers" in answer(page)
        assert second.bodies[-1]["messages"][1]["content"].startswith("Here is a function")


def test_a_server_that_falls_silent_is_not_waited_for(visit: Visit, mock: Mock) -> None:
    mock.step_s = 0.05
    page = visit(mock.url)
    ask(page, "Hello", waits=False)
    expect(page.locator(".run").nth(3)).to_be_visible()
    mock.step_s = 30
    page.route("**/lookahead/state", lambda route: route.abort())
    expect(page.locator(".answer-note")).to_contain_text("broke off")
    expect(page.get_by_role("button", name="Send")).to_be_visible()


def test_a_stream_that_breaks_off_keeps_its_text(visit: Visit, mock: Mock) -> None:
    mock.breaks_after = 5
    page = visit(mock.url)
    ask(page, "Hello")
    expect(page.locator(".answer-note")).to_contain_text("The text so far is kept")
    assert answer(page).startswith("Here is")


def test_a_second_page_does_not_disturb_the_first(visit: Visit, mock: Mock) -> None:
    first, second = visit(mock.url), visit(mock.url)
    ask(first, "One", waits=False)
    ask(second, "Two")
    expect(first.locator("#stop")).to_be_hidden()
    assert answer(first) == answer(second)


def test_a_killed_rank_goes_dark_and_comes_back(visit: Visit, mock: Mock) -> None:
    mock.may_kill, mock.step_s = True, 0.05
    page = visit(mock.url)
    ask(page, "Hello", waits=False)
    page.get_by_role("button", name="Kill rank 1").click()
    rank = page.locator(".rank").nth(1)
    expect(rank).to_have_attribute("data-state", "lost")
    expect(page.locator("#ranks-note")).to_contain_text("The text goes on")
    expect(page.get_by_role("button", name="Kill rank 1")).to_be_disabled()
    expect(rank).to_have_attribute("data-state", "serving")
    expect(page.locator("#ranks-note")).to_have_text("Rank 1 is back.")
    expect(page.locator("#stop")).to_be_hidden()
    assert "in the order of n." in answer(page)


def test_without_leave_there_is_no_kill_button(visit: Visit, mock: Mock) -> None:
    page = visit(mock.url)
    expect(page.locator(".rank")).to_have_count(2)
    assert page.get_by_role("button", name="Kill rank 1").count() == 0
