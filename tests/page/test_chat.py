"""A chat is held: text in runs, several turns, settings, and answers that are stopped."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.page import recording
from tests.page.actions import answer, ask
from tests.page.conftest import Visit
from tests.page.mock import Mock


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1440])
def test_a_chat_of_two_turns(visit: Visit, mock: Mock, width: int, scheme: str) -> None:
    page = visit(mock.url, width, color_scheme=scheme)
    ask(page, "Write a function.")
    ask(page, "And another?")
    assert page.locator(".question").all_inner_texts() == ["Write a function.", "And another?"]
    shown = answer(page)
    assert "def fibonacci(n):\n    a, b = 0, 1" in shown and "two numbers" in shown and "**" not in shown
    roles = [message["role"] for message in mock.bodies[-1]["messages"]]
    assert roles == ["user", "assistant", "user"]
    assert mock.bodies[-1]["messages"][1]["content"] == recording.TEXT
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (max(map(int, background[4:-1].split(","))) < 60) == (scheme == "dark")


def test_tokens_of_a_step_have_one_colour(visit: Visit, mock: Mock) -> None:
    page = visit(mock.url)
    ask(page, "Write a function.")
    steps = list(recording.steps(recording.TEXT, "auto", recording.Vocabulary()))
    runs = page.locator(".run").evaluate_all(
        "all => all.map(one => [one.dataset.step, one.className, one.textContent])"
    )
    shown = {int(step) for step, _, _ in runs}
    assert shown <= set(range(len(steps))) and len(shown) > len(steps) * 0.8  # those of marks alone are not shown
    for step, kind, text in runs:
        assert text.strip() in steps[int(step)][0]
        assert ("run-single" in kind) == (len(steps[int(step)][1]["emitted"]) == 1)
    figures = page.locator(".answer-figures").inner_text()
    tokens = sum(len(trace["emitted"]) for _, trace in steps)
    assert f"{tokens} tokens · {len(steps)} steps · {tokens / len(steps):.1f} per step" in figures


def test_a_text_is_never_read_as_html(visit: Visit, mock: Mock) -> None:
    mock.text = recording.HOSTILE
    page = visit(mock.url)
    ask(page, recording.HOSTILE)
    assert "<script>document.title" in answer(page) and "javascript:1" in answer(page)
    assert page.locator(".turn img, .turn script, .turn a").count() == 0
    assert page.title() == "lookahead-parallel"


def test_settings_are_sent_and_kept(visit: Visit, mock: Mock) -> None:
    page = visit(mock.url)
    page.locator("#settings summary").click()
    page.get_by_label("Method").select_option("lookahead")
    page.get_by_label("Most tokens").first.fill("20")
    page.get_by_label("Temperature").fill("0.7")
    page.get_by_label("Seed").fill("5")
    ask(page, "Hello")
    body = mock.bodies[-1]
    assert body["decode"] == {"method": "lookahead"}
    assert (body["max_tokens"], body["temperature"], body["seed"]) == (20, 0.7, 5)
    page.reload()
    expect(page.locator("#settings-summary")).to_have_text("lookahead · 20 tokens · temperature 0.7 · seed 5")


def test_an_answer_is_stopped_and_a_new_chat_begun(visit: Visit, mock: Mock) -> None:
    mock.step_s = 0.2
    page = visit(mock.url)
    ask(page, "Hello", waits=False)
    expect(page.locator(".run").first).to_be_visible()
    page.get_by_role("button", name="Stop").click()
    expect(page.locator(".answer-figures")).to_contain_text("stopped")
    assert len(answer(page)) < len(recording.TEXT) / 2
    page.get_by_role("button", name="New chat").click()
    assert page.locator(".turn").count() == 0
    mock.step_s = 0
    ask(page, "Again")
    assert len(mock.bodies[-1]["messages"]) == 1


def test_a_chat_by_keyboard_alone(visit: Visit, mock: Mock) -> None:
    page = visit(mock.url)
    expect(page.get_by_role("textbox", name="Your message")).to_be_focused()
    page.keyboard.type("Hello")
    page.keyboard.press("Shift+Enter")
    page.keyboard.type("there")
    page.keyboard.press("Enter")
    expect(page.locator("#stop")).to_be_hidden()
    assert page.locator(".question").inner_text() == "Hello\nthere"
    last = int(page.locator("#step").get_attribute("max") or 0)
    page.keyboard.press("ArrowLeft")  # the box is empty, so arrows replay
    expect(page.locator("#tree-title")).to_have_text(f"Step {last} of {last + 1}")


def test_an_answer_is_copied_and_asked_for_again(visit: Visit, mock: Mock) -> None:
    page = visit(mock.url, permissions=["clipboard-read", "clipboard-write"])
    ask(page, "First")
    ask(page, "Second")
    page.get_by_role("button", name="Copy").first.click()
    expect(page.get_by_role("button", name="Copied")).to_be_visible()
    assert page.evaluate("navigator.clipboard.readText()") == recording.TEXT
    page.get_by_role("button", name="Regenerate").last.click()
    expect(page.locator("#stop")).to_be_hidden()
    assert page.locator(".question").all_inner_texts() == ["First", "Second"]
    assert [body["messages"][-1]["content"] for body in mock.bodies] == ["First", "Second", "Second"]
    assert mock.bodies[1]["messages"] == mock.bodies[2]["messages"]


def test_a_question_is_edited(visit: Visit, mock: Mock) -> None:
    page = visit(mock.url)
    ask(page, "First")
    ask(page, "Second")
    page.get_by_role("button", name="Edit").first.click()
    page.get_by_role("textbox", name="Edit the question").press("Escape")
    assert page.locator(".question").all_inner_texts() == ["First", "Second"]
    page.get_by_role("button", name="Edit").first.click()
    page.get_by_role("textbox", name="Edit the question").fill("Another first")
    page.get_by_role("button", name="Send again").click()
    expect(page.locator(".question")).to_have_text(["Another first"])
    expect(page.locator("#stop")).to_be_hidden()
    assert mock.bodies[-1]["messages"] == [{"role": "user", "content": "Another first"}]


def test_a_system_prompt_and_settings_of_sampling(visit: Visit, mock: Mock) -> None:
    page = visit(mock.url)
    page.locator("#settings summary").click()
    page.get_by_label("System prompt").fill("Be brief.")
    page.get_by_label("Temperature").fill("0.8")
    page.get_by_label("Top-p").fill("0.9")
    page.get_by_label("Repetition penalty").fill("1.1")
    ask(page, "Hello")
    body = mock.bodies[-1]
    assert body["messages"][0] == {"role": "system", "content": "Be brief."}
    assert (body["temperature"], body["top_p"], body["repetition_penalty"]) == (0.8, 0.9, 1.1)
    assert not {"top_k", "min_p", "seed"} & body.keys(), "empty fields are the model's"
    expect(page.locator("#settings-summary")).to_contain_text("top-p 0.9 · repetition-penalty 1.1 · system prompt")


def test_a_chat_is_exported(visit: Visit, mock: Mock) -> None:
    page = visit(mock.url)
    export = page.get_by_role("button", name="Export")
    expect(export).to_be_disabled()
    ask(page, "Hello")
    with page.expect_download() as download:
        export.click()
    assert download.value.suggested_filename == "chat.md"
    text = download.value.path().read_text()
    assert text.startswith("## user\n\nHello\n") and recording.TEXT.strip() in text
