"""launch/chat.py with ranks of this machine, its lines piped in: answers, commands, settings and refusals."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from lp import Engine, Lookahead
from tests.launch import commands
from tests.launch.conversation.conftest import QUICK, Chat

FIGURES = (
    r"\d+ tokens, \d+ tokens/s, \d+\.\d\d tokens per step, first text after \d+ ms(, ended by its greatest length)?"
)


def said(*contents: str) -> list[dict[str, str]]:
    """Messages of a user and an assistant in turn."""
    return [{"role": "assistant" if at % 2 else "user", "content": text} for at, text in enumerate(contents)]


def answers(engine: Engine, *questions: str, system: str | None = None, **settings) -> list[str]:
    """What the engine answers to one question after the other."""
    talk: list[str] = []
    before = [{"role": "system", "content": system}] if system else []
    for question in questions:
        talk.append(question)
        talk.append(engine.generate([*before, *said(*talk)], max_new_tokens=12, **settings).text)
    return talk[1::2]


def run(chat: Chat, folder: str, lines: str, *arguments: str) -> tuple[int, str, list[str]]:
    """The exit code, what stdout got, and the lines of stderr but for those about loading."""
    code, out, err = chat(f"model.path={folder}", *QUICK, "max_tokens=12", *arguments, lines=lines)
    return code, out, [line for line in err.splitlines() if not line.startswith(("loaded", "keys and values"))]


def test_the_history_and_the_system_prompt_reach_the_model(chat: Chat, chat_folder: str, engine: Engine) -> None:
    first, second = answers(engine, "def f(", "and g", system="Be brief.")
    code, out, notes = run(chat, chat_folder, "def f(\n\nand g\n", "system=Be brief.")
    assert (code, out) == (0, f"{first}\n{second}\n")
    assert len(notes) == 2 and all(re.fullmatch(FIGURES, line) for line in notes), notes
    assert notes[0].startswith("12 tokens") and notes[0].endswith("ended by its greatest length")
    assert "\x1b" not in out + "".join(notes)


def test_clear_forgets_and_retry_asks_again(chat: Chat, chat_folder: str, engine: Engine) -> None:
    first, second = answers(engine, "def f(", "and g")
    code, out, _ = run(chat, chat_folder, "def f(\nand g\n/retry\n/clear\ndef f(\n/quit\nnever read\n")
    assert (code, out) == (0, f"{first}\n{second}\n{second}\n{first}\n")


def test_settings_change_the_answers_and_can_be_taken_back(chat: Chat, chat_folder: str, engine: Engine) -> None:
    sampled = answers(engine, "def f(", temperature=0.9, top_p=0.8, seed=5)[0]
    pirate = answers(engine, "def f(", system="Be a pirate.", temperature=0.9, top_p=0.8, seed=5)[0]
    greedy = answers(engine, "def f(", decode=Lookahead(window=3))[0]
    changes = "/set temperature=0.9\n/set top_p = 0.8\n/set seed=5\n/set decode=lookahead\n/set decode.window=3\n"
    again = "/clear\n/set system=Be a pirate.\ndef f(\n/clear\n/set system=\n/set temperature=\ndef f(\n/set\n"
    code, out, notes = run(chat, chat_folder, f"{changes}def f(\n{again}", "sampling.temperature=0")
    assert (code, out) == (0, f"{sampled}\n{pirate}\n{greedy}\n")
    assert notes[3:] == [
        "temperature=0.0", "top_p=0.8", "seed=5", "max_tokens=12", "decode=lookahead", "decode.window=3"
    ]  # fmt: skip


def test_a_saved_chat_is_a_prompt_file(chat: Chat, chat_folder: str, engine: Engine, tmp_path: Path) -> None:
    first, second = answers(engine, "def f(", "/etc", system="Be brief.")
    (tmp_path / "taken").write_text("mine")
    lines = "def f(\n/save talk.jsonl\n//etc\n/save talk.jsonl\n/save taken\n/save\n/save no/such/folder\n"
    code, out, notes = run(chat, chat_folder, lines, "system=Be brief.")
    assert (code, out) == (1, f"{first}\n{second}\n")
    record = json.loads((tmp_path / "talk.jsonl").read_text())
    assert record["messages"][1:] == said("def f(", first, "/etc", second)
    assert (tmp_path / "taken").read_text() == "mine"
    errors = [line for line in notes if line.startswith("error: ")]
    assert "taken is there already" in errors[0]
    assert "needs a file's name" in errors[1] and "No such file" in errors[2]


REFUSED = {
    "/nope": "/nope is no command",
    "/set": None,
    "/set temperature": "'temperature' is not of the form key=value; the keys are temperature",
    "/set temprature=1": "'temprature' is no setting; the settings are temperature",
    "/set temperature=hot": "temperature must be a number, not 'hot'",
    "/set temperature=-1": "temperature=-1.0 is out of range",
    "/set max_tokens=5000": "max_tokens=5000 do not fit the model's context of 640",
    "/set max_tokens=0": "max_tokens=0 must be at least 1",
    "/set decode=magic": "decode method 'magic' is unknown; it is one of auto",
    "/set decode.windw=3": "decode.windw is not a setting of auto",
    "/retry": "the conversation is empty",
    "forbidden": "the model's chat template refuses these messages: mind your words",
    "abc " * 800: "leaves no room in the model's context of 640 tokens; shorten the prompt; /clear forgets",
}


def test_what_is_refused_is_one_line_and_changes_nothing(chat: Chat, chat_folder: str, engine: Engine) -> None:
    expected = answers(engine, "def f(")[0]
    code, out, notes = run(chat, chat_folder, "\n".join([*REFUSED, "def f("]))
    assert (code, out) == (1, f"{expected}\n")
    wanted = [message for message in REFUSED.values() if message]
    errors = [line for line in notes if line.startswith("error: ")]
    assert len(errors) == len(wanted), notes
    for error, message in zip(errors, wanted, strict=True):
        assert message in error


def test_an_answer_that_would_not_fit_leaves_the_chat_as_it_was(chat: Chat, chat_folder: str, engine: Engine) -> None:
    first, second = answers(engine, "def f(", "and g")
    lines = "def f(\n/set max_tokens=630\nand g\n/retry\n/set max_tokens=12\nand g\n"
    code, out, notes = run(chat, chat_folder, lines)
    assert (code, out) == (1, f"{first}\n{second}\n")
    errors = [line for line in notes if line.startswith("error: ")]
    assert len(errors) == 2 and all("max_tokens=630 do not fit the model's context of 640" in e for e in errors)


def test_settings_of_the_command_line_are_checked_before_the_first_line(chat: Chat, chat_folder: str) -> None:
    code, out, notes = run(chat, chat_folder, "def f(\n", "max_tokens=-3")
    assert (code, out) == (2, "")
    assert len(notes) == 1 and notes[0].startswith("error: ") and "-3 must be at least 1" in notes[0]


@pytest.mark.parametrize("ranks", [[], ["parallel.ranks=2"]])
def test_a_checkpoint_without_a_template_is_refused(ranks: list[str], chat: Chat, folder: str) -> None:
    code, out, notes = run(chat, folder, "hello\n", *ranks)
    assert (code, out, len(notes)) == (2, "", 1)
    assert notes[0].startswith("error: the checkpoint has no chat template")


@pytest.mark.slow
def test_ranks_that_the_program_starts_answer_the_same(
    chat: Chat, chat_folder: str, engine: Engine, tmp_path: Path
) -> None:
    first, second = answers(engine, "def f(", "and g")
    code, out, notes = run(chat, chat_folder, "def f(\nand g\n", "parallel.ranks=2")
    assert (code, out) == (0, f"{first}\n{second}\n"), notes


@pytest.mark.exhaustive
def test_ranks_of_torchrun_answer_the_same(chat_folder: str, engine: Engine, tmp_path: Path) -> None:
    first, second = answers(engine, "def f(", "and g")
    arguments = [f"model.path={chat_folder}", *QUICK, "max_tokens=12"]
    done = commands.run("chat", arguments, tmp_path, num_ranks=2, lines="def f(\nand g\n")
    assert (done.returncode, done.stdout) == (0, f"{first}\n{second}\n"), done.stderr


@pytest.mark.slow
def test_a_rank_that_cannot_load_ends_the_chat(chat: Chat, chat_folder: str) -> None:
    code, out, notes = run(chat, chat_folder, "def f(\n", "parallel.ranks=2", "attention=flash", "model.device=cpu")
    assert (code, out) == (2, "")
    assert any(line.startswith("error: ") and "flash" in line for line in notes), notes
