"""launch/chat.py on a terminal: Ctrl-C, lines of several lines, colours, figures, and how it is left."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lp import Engine
from lp.model.checkpoint import ModelSettings, load
from lp.model.compilation import CompileMode
from tests.launch.conversation.conftest import QUICK
from tests.launch.conversation.terminals import ALT_ENTER, CTRL_C, CTRL_D, ENTER, PROMPT, terminal
from tests.launch.server.harness import eventually, serving


@pytest.mark.slow
def test_ctrl_c_ends_an_answer_alone_and_then_the_chat(talkative_folder: str, tmp_path: Path) -> None:
    with terminal([f"model.path={talkative_folder}", *QUICK], tmp_path) as screen:
        screen.expect("single on 1 rank.*/help lists the commands")
        screen.expect(PROMPT)
        screen.press(f"def f({ENTER}")
        screen.expect("\x1b\\[1;3[26]m")  # an accepted run, in bold green or cyan
        screen.press(CTRL_C)
        screen.expect(
            r"\d+ tokens, \d+ tokens/s, \d+\.\d\d tokens per step, first text after \d+ ms, stopped by Ctrl-C"
        )

        screen.expect(PROMPT)
        screen.press(f"/set max_tokens=4{ENTER}")
        screen.expect(PROMPT)
        screen.press(f"one{ALT_ENTER}two{ENTER}")
        screen.expect("4 tokens, .* ended by its greatest length")
        screen.expect(PROMPT)
        screen.press(f"/save talk.jsonl{ENTER}")
        screen.expect("saved in")
        screen.expect(PROMPT)
        screen.press(f"half a line{CTRL_C}")  # clears it
        screen.press(f"/nope{ENTER}")
        screen.expect("error: /nope is no command")
        screen.expect(PROMPT)
        screen.press(CTRL_C)
        assert screen.wait() == 0, screen.seen
        assert "Traceback" not in screen.seen
    asked = [m["content"] for m in json.loads((tmp_path / "talk.jsonl").read_text())["messages"][::2]]
    assert asked == ["def f(", "one\ntwo"]


@pytest.mark.slow
def test_ctrl_c_ends_an_answer_of_several_ranks(talkative_folder: str, tmp_path: Path) -> None:
    with terminal([f"model.path={talkative_folder}", *QUICK, "parallel.ranks=2"], tmp_path) as screen:
        screen.expect("lp on 2 rank")
        screen.expect(PROMPT)
        for _ in range(2):
            screen.press(f"def f({ENTER}")
            screen.expect("\x1b\\[1;3[26]m")
            screen.press(CTRL_C)
            screen.expect("stopped by Ctrl-C")
            screen.expect(PROMPT)
        screen.press(CTRL_D)
        assert screen.wait() == 0, screen.seen
        assert "Traceback" not in screen.seen


@pytest.mark.slow
def test_ctrl_c_cancels_the_request_on_a_server(talkative_folder: str, tmp_path: Path) -> None:
    """Before the first token and in the midst of an answer."""
    engine = Engine(load(ModelSettings(path=talkative_folder, device="cpu", compile=CompileMode.off)))
    with serving(engine.checkpoint) as server, terminal([f"url={server.url}"], tmp_path) as screen:
        screen.expect(f"at {server.url}")
        screen.expect(PROMPT)
        server.gate.open_gate.clear()
        screen.press(f"def f({ENTER}")
        eventually(lambda: server.server.context.service.num_running == 1, within_s=30)
        screen.press(CTRL_C)
        screen.expect("stopped by Ctrl-C")
        server.gate.open_gate.set()
        eventually(lambda: server.server.context.service.num_running == 0)

        screen.expect(PROMPT)
        screen.press(f"def g({ENTER}")
        screen.expect("\x1b\\[1;3[26]m")
        screen.press(CTRL_C)
        screen.expect(r"\d+ tokens, .*stopped by Ctrl-C")
        eventually(lambda: server.server.context.service.num_running == 0)
        screen.expect(PROMPT)
        screen.press(f"/quit{ENTER}")
        assert screen.wait() == 0, screen.seen
