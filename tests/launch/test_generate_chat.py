"""launch/generate.py with conversations: messages, and texts that are put into the chat template."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lp import Engine
from tests.launch.conftest import Main
from tests.models import save_checkpoint

TEMPLATE = (
    "{% for m in messages %}{% if m.role == 'robot' %}{{ raise_exception('no robots') }}{% endif %}"
    "<{{ m.role }}>{{ m.content }}\n{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)
MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "def f("}]
RENDERED = "<system>Be brief.\n<user>def f(\n<assistant>"
QUICK = ["model.compile=off", "step_times=off", "max_new_tokens=12", "format=json"]


@pytest.fixture(scope="module")
def chat_folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save_checkpoint(tmp_path_factory.mktemp("chat"), chat_template=TEMPLATE))


@pytest.fixture(scope="module")
def chat(chat_folder: str) -> Engine:
    return Engine.from_pretrained(chat_folder, device="cpu", compile="off", step_times="off")


@pytest.fixture
def generate(main: Main, chat_folder: str) -> Main:
    return lambda *arguments: main(f"model.path={chat_folder}", *QUICK, *arguments)


def test_messages_use_the_template_and_a_text_does_so_if_asked(generate: Main, chat: Engine, tmp_path: Path) -> None:
    """One run for inline messages, and one for a file that holds both kinds of prompts."""
    expected = chat.generate(RENDERED, max_new_tokens=12)
    code, out, err = generate(f"messages={json.dumps(MESSAGES)}")
    assert code == 0, err
    assert json.loads(out)["token_ids"] == expected.token_ids

    lines = [{"id": "talk", "messages": MESSAGES}, {"prompt": "def f("}]
    (tmp_path / "both.jsonl").write_text("\n".join(json.dumps(line) for line in lines))
    for chatting, text in (("false", "def f("), ("true", "<user>def f(\n<assistant>")):
        code, out, err = generate("prompts=both.jsonl", f"chat={chatting}")
        assert code == 0, err
        records = [json.loads(line) for line in out.splitlines()]
        assert [record["id"] for record in records] == ["talk", "1"]
        assert records[0]["token_ids"] == expected.token_ids
        assert records[1]["token_ids"] == chat.generate(text, max_new_tokens=12).token_ids


def test_the_question_is_shown_before_the_answer(generate: Main, chat: Engine) -> None:
    code, out, err = generate("chat=true", "prompt=def f(", "format=text")
    assert code == 0, err
    answer = chat.generate("<user>def f(\n<assistant>", max_new_tokens=12).text
    assert out == f"def f(\n\n{answer}\n"


BAD = {
    "no JSON": (["messages=[{"], "error: messages is not JSON"),
    "no list": (['messages={"role": "user"}'], "error: messages must be a list of messages like"),
    "an empty list": (["messages=[]"], "error: messages must be a list of messages like"),
    "no content": (['messages=[{"role": "user"}]'], "error: messages[0] must have a text under 'content'"),
    "a template that raises": (
        ['messages=[{"role": "robot", "content": "beep"}]'],
        "error: messages: the model's chat template refuses these messages: no robots",
    ),
    "two kinds of prompts": (["prompt=a", "messages=[]"], "got prompt and messages"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_messages_give_one_line(name: str, generate: Main) -> None:
    arguments, expected = BAD[name]
    code, out, err = generate(*arguments)
    found = [line for line in err.splitlines() if "error" in line]
    assert (code, out, len(found)) == (2, "", 1), err
    assert expected in found[0] and "Traceback" not in err


def test_a_line_of_a_file_is_named(generate: Main, tmp_path: Path) -> None:
    (tmp_path / "bad.jsonl").write_text('{"messages": [{"role": "user", "content": "a"}]}\n{"messages": [3]}\n')
    code, _, err = generate("prompts=bad.jsonl")
    assert code == 2
    assert "error: bad.jsonl, line 2: messages[0] must be an object" in err


def test_a_checkpoint_without_a_template_is_refused(main: Main, folder: str) -> None:
    code, out, err = main(f"model.path={folder}", *QUICK, "chat=true", "prompt=hello")
    assert (code, out) == (2, "")
    assert "error: prompt: the checkpoint has no chat template" in err
