"""launch/index.py writes what decode=auto then drafts from, and every text stays as it was."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from launch import index as program
from launch.config import engine_settings, process
from launch.data.answers import AnswerCollector, line_start
from launch.index import IndexSettings
from lp import Auto, Engine
from lp.drafting.answer_index import FILE_NAME, TOKEN, read_index
from lp.drafting.ngrams import context_of
from tests.launch import commands
from tests.launch.conftest import Main
from tests.models import VOCAB_SIZE

PROMPT = "def f(x):"


@pytest.fixture
def checkpoint(checkpoint_folder: Callable[[str], Path], tmp_path: Path) -> Path:
    """A checkpoint of this test's own, since the index lies beside the weights."""
    found = tmp_path / "model"
    found.mkdir()
    for file in checkpoint_folder("llama").iterdir():
        (found / file.name).symlink_to(file)
    return found


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]) -> Iterator[Callable[..., tuple[int, str]]]:
    """Calls launch/index.py in this process: arguments -> (exit code, stderr)."""

    def call(*arguments: str) -> tuple[int, str]:
        engine_settings.register("index", IndexSettings)
        capfd.readouterr()
        code = process.main("index", IndexSettings, program.run, "usage", ["threads=1", *arguments])
        return code, capfd.readouterr().err

    yield call
    torch.set_num_threads(1)


def best_after(folder: Path, tokens: list[int]) -> list[int]:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.inference_mode():
        return model(torch.tensor([tokens])).logits[0, -1].topk(3).indices.tolist()


def test_it_holds_the_models_answers_after_every_token(run: Callable[..., tuple[int, str]], checkpoint: Path) -> None:
    code, err = run(f"model.path={checkpoint}", "candidates=3")
    assert code == 0 and f"asking what follows {VOCAB_SIZE} tokens" in err and f"and {VOCAB_SIZE} tokens, 0.0 MB" in err
    index = read_index(checkpoint / FILE_NAME, VOCAB_SIZE)
    assert (index.num_tokens, index.num_pairs) == (VOCAB_SIZE, 0)
    answers = index.newest(VOCAB_SIZE).tokens
    start = line_start(Engine.from_pretrained(str(checkpoint), index="off").checkpoint.tokenizer)
    for token in (3, 57, VOCAB_SIZE - 1):
        assert list(answers[context_of([token]) & TOKEN]) == best_after(checkpoint, [*start, token])


def test_a_second_run_adds_texts_and_asks_nothing_twice(run: Callable[..., tuple[int, str]], checkpoint: Path) -> None:
    assert run(f"model.path={checkpoint}", "num_tokens=40")[0] == 0
    first = read_index(checkpoint / FILE_NAME, VOCAB_SIZE)
    assert first.num_tokens == 40
    code, err = run(f"model.path={checkpoint}", "num_tokens=40", f"prompt={PROMPT}", "max_new_tokens=20")
    assert code == 0 and "asking what follows 0 tokens and along 1 text" in err
    second = read_index(checkpoint / FILE_NAME, VOCAB_SIZE)
    assert second.num_pairs > 20 and second.num_tokens >= 40
    assert run(f"model.path={checkpoint}", "num_tokens=5", "fresh=true")[0] == 0
    assert read_index(checkpoint / FILE_NAME, VOCAB_SIZE).num_tokens == 5


def arguments_of(checkpoint: Path) -> list[str]:
    shared = [f"model.path={checkpoint}", f"prompt={PROMPT}", "max_new_tokens=40", "ignore_eos=true", "format=json"]
    return [*shared, "decode.rows=32"]


def generate(main: Main, checkpoint: Path, *more: str) -> tuple[dict[str, Any], str]:
    """The record of a text, and what was logged."""
    code, out, err = main(*arguments_of(checkpoint), *more)
    assert code == 0, err
    return json.loads(out), err


@pytest.mark.slow
def test_one_and_two_ranks_use_it_and_give_the_same_text(
    run: Callable[..., tuple[int, str]], main: Main, checkpoint: Path, tmp_path: Path
) -> None:
    assert run(f"model.path={checkpoint}", f"prompt={PROMPT}", "max_new_tokens=60")[0] == 0
    without, err = generate(main, checkpoint, "index=off")
    assert "index of answers" not in err
    alone, err = generate(main, checkpoint)
    assert "index of answers: after" in err
    done = commands.run("generate", arguments_of(checkpoint), tmp_path, num_ranks=2)
    assert done.returncode == 0, done.stderr
    both = json.loads(done.stdout)
    assert alone["token_ids"] == both["token_ids"] == without["token_ids"]
    assert alone["steps"] == both["steps"] < without["steps"]


def test_an_index_that_was_named_must_be_usable_and_one_beside_the_weights_need_not(
    main: Main, checkpoint: Path
) -> None:
    (checkpoint / FILE_NAME).write_bytes(b"broken")
    _, err = generate(main, checkpoint)
    assert "cannot be read" in err and "launch/index.py" in err
    for named, reason in ((FILE_NAME, "cannot be read"), ("missing.index", "is not a file")):
        code, _, err = main(f"model.path={checkpoint}", "prompt=a", f"index={checkpoint / named}")
        assert code == 2 and err.count("error: ") == 1 and "index=off" in err
        assert reason in err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["candidates=0"], "candidates=0 must be at least 1"),
        (["num_tokens=-1"], "num_tokens=-1 must be at least 1"),
        (["output=nowhere/index"], "output=FILE"),
        (["prompts=missing.jsonl"], "missing.jsonl"),
        (["prompt=a", "prompt_file=b"], "got prompt and prompt_file"),
        (["prompt=a", "max_new_tokens=100000"], "prompt: a prompt of"),
    ],
)
def test_bad_input_is_refused_in_one_line(
    arguments: list[str], said: str, run: Callable[..., tuple[int, str]], checkpoint: Path
) -> None:
    code, err = run(f"model.path={checkpoint}", *arguments)
    errors = [line for line in err.splitlines() if line.startswith("error: ")]
    assert code == 2 and len(errors) == 1 and said in errors[0]
    assert not (checkpoint / FILE_NAME).exists()


def test_several_ranks_are_refused(
    run: Callable[..., tuple[int, str]], checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    code, err = run(f"model.path={checkpoint}")
    assert code == 2 and "without torchrun" in err


def test_ctrl_c_keeps_what_was_collected(
    run: Callable[..., tuple[int, str]], checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(AnswerCollector, "along_text", stop)
    code, err = run(f"model.path={checkpoint}", f"prompt={PROMPT}")
    assert code == 128 + signal.SIGINT and "Traceback" not in err
    assert read_index(checkpoint / FILE_NAME, VOCAB_SIZE).num_tokens == VOCAB_SIZE


def test_a_model_that_answers_nan_is_reported(llama: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    forward = llama.checkpoint.model.forward_many

    def broken(*arguments: Any, **more: Any) -> torch.Tensor:
        return forward(*arguments, **more) * torch.nan

    monkeypatch.setattr(llama.checkpoint.model, "forward_many", broken)
    with pytest.raises(ValueError, match="not a number"):
        AnswerCollector(llama, 4).along_text([5, 9], 10)


def test_requests_can_do_without_it(checkpoint: Path, run: Callable[..., tuple[int, str]]) -> None:
    assert run(f"model.path={checkpoint}", f"prompt={PROMPT}", "max_new_tokens=60")[0] == 0
    engine = Engine.from_pretrained(str(checkpoint), step_times="off")
    used = engine.generate(PROMPT, max_new_tokens=40, decode=Auto(rows=16), temperature=0.0)
    left = engine.generate(PROMPT, max_new_tokens=40, decode=Auto(rows=16, index_drafts=False), temperature=0.0)
    assert used.token_ids == left.token_ids
    assert used.stats.accepted["index"] > 0 and "index" not in left.stats.proposed
