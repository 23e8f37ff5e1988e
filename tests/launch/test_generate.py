"""launch/generate.py through its command line: what it prints, where, and what it says of bad input."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from launch import configuration, generate, process
from launch.generate import GenerateSettings
from lp import Engine
from tests.launch import commands
from tests.parallel.ranks import free_port

KEYS = [
    "id", "prompt_tokens", "token_ids", "text", "finish_reason", "steps", "tokens_per_step",
    "ttft_s", "decode_s", "tokens_per_s", "decode", "parallel", "ranks", "seed",
]  # fmt: skip
Main = Callable[..., tuple[int, str, str]]


@pytest.fixture
def folder(checkpoint_folder: Callable[[str], Path]) -> str:
    return str(checkpoint_folder("llama"))


@pytest.fixture
def main(capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Main]:
    """Calls the program in this process, in an empty folder: arguments -> (exit code, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def call(*arguments: str) -> tuple[int, str, str]:
        configuration.register("generate", GenerateSettings)
        code = process.main("generate", GenerateSettings, generate.run, "usage", ["parallel.threads=1", *arguments])
        return code, *capfd.readouterr()

    yield call
    torch.set_num_threads(1)
    for number, handler in handlers.items():
        signal.signal(number, handler)


def test_json_is_one_object_on_stdout_and_nothing_else(main: Main, folder: str, llama: Engine) -> None:
    code, out, err = main(
        f"model.path={folder}", "prompt=def add(first, second):", "max_new_tokens=20", "format=json", "ignore_eos=true"
    )
    assert code == 0, err
    assert len(out.splitlines()) == 1
    record = json.loads(out)
    assert list(record) == KEYS
    expected = llama.generate("def add(first, second):", max_new_tokens=20)
    assert record["token_ids"][: len(expected.token_ids)] == expected.token_ids
    assert (record["decode"], record["parallel"], record["ranks"]) == ("lookahead", "single", 1)
    assert record["tokens_per_step"] == pytest.approx(20 / record["steps"], abs=1e-3)
    assert "loaded" in err


def test_text_is_streamed_and_figures_go_to_stderr(main: Main, folder: str, llama: Engine) -> None:
    code, out, err = main(f"model.path={folder}", "prompt=class Point", "max_new_tokens=30", "show_prompt=false")
    assert code == 0, err
    assert out == llama.generate("class Point", max_new_tokens=30).text + "\n"
    assert "tokens per step" in err
    assert "\x1b" not in out


def test_accepted_runs_are_coloured_if_asked(main: Main, folder: str) -> None:
    code, out, _ = main(f"model.path={folder}", "prompt=class Point", "max_new_tokens=60", "color=always")
    assert code == 0
    assert "\x1b[" in out


def test_jsonl_gives_a_line_for_each_prompt(main: Main, folder: str, tmp_path: Path) -> None:
    lines = [
        {"id": "a", "prompt": "def f(x):"},
        {"prompt": "class \u2028 Point:"},
        {"id": 7, "turns": ["self.x", "no"]},
    ]
    (tmp_path / "prompts.jsonl").write_text("\n".join(json.dumps(line, ensure_ascii=False) for line in lines) + "\n\n")
    code, out, err = main(f"model.path={folder}", "prompts=prompts.jsonl", "max_new_tokens=5", "format=json")
    assert code == 0, err
    assert [json.loads(line)["id"] for line in out.splitlines()] == ["a", "1", "7"]


def test_a_seed_gives_one_text_for_all_methods(main: Main, folder: str) -> None:
    texts = []
    for method in ("autoregressive", "jacobi", "prompt_lookup", "lookahead"):
        sampling = ["sampling.temperature=0.8", "sampling.top_p=0.9", "sampling.seed=1"]
        code, out, err = main(
            f"model.path={folder}", f"decode={method}", *sampling, "prompt=def f(", "max_new_tokens=24", "format=json"
        )
        assert code == 0, err
        record = json.loads(out)
        assert (record["decode"], record["seed"]) == (method, 1)
        texts.append(record["token_ids"])
    assert texts == [texts[0]] * 4


def test_stop_strings_and_log_probabilities(main: Main, folder: str) -> None:
    shared = [f"model.path={folder}", "prompt=def f(", "max_new_tokens=24", "format=json", "ignore_eos=true"]
    text = json.loads(main(*shared)[1])["text"]
    stop = re.findall(r"[A-Za-z_]{2,}", text)[-1]
    code, out, err = main(*shared, "sampling.logprobs=2", f"stop=[{json.dumps(stop)}]")
    assert code == 0, err
    record = json.loads(out)
    assert record["text"] == text[: text.index(stop)]
    assert record["finish_reason"] == "stop"
    assert [entry["token"] for entry in record["logprobs"]] == record["token_ids"]
    assert all(len(entry["top"]) == 2 for entry in record["logprobs"])


def test_no_run_folders_are_left(main: Main, folder: str, tmp_path: Path) -> None:
    assert main(f"model.path={folder}", "prompt=x", "max_new_tokens=2")[0] == 0
    assert list(tmp_path.iterdir()) == []


def test_help_names_groups_and_settings(main: Main) -> None:
    code, out, _ = main("--help")
    assert code == 0
    assert "decode=autoregressive|jacobi|lookahead|prompt_lookup" in out
    assert "max_new_tokens: 128" in out


BAD_ARGUMENTS = {
    "wrong key": (["decode.windw=3"], "windw"),
    "wrong type": (["decode.window=wide"], "decode.window"),
    "unknown group choice": (["decode=magic"], "lookahead"),
    "unknown enum value": (["parallel.mode=tensor"], "parallel.mode"),
    "not key=value": (["fibonacci"], "key=value"),
    "hydra grammar": (["stop=[a"], "stop"),
    "W out of range": (["decode.window=0"], "decode.window=0"),
    "N out of range": (["decode.ngram=1"], "decode.ngram=1"),
    "G out of range": (["decode.guesses=100000"], "decode.guesses=100000"),
    "too many rows": (["decode.window=128", "decode.ngram=32", "decode.guesses=256"], "rows"),
    "temperature": (["sampling.temperature=-1"], "temperature=-1"),
    "top_p": (["sampling.top_p=1.5"], "top_p=1.5"),
    "logit_bias": (["sampling.logit_bias={99999: 1.0}"], "99999"),
    "max_new_tokens": (["max_new_tokens=-5"], "max_new_tokens=-5"),
    "longer than the context": (["max_new_tokens=100000"], "context of 640 tokens"),
    "dtype": (["model.dtype=int3"], "int3"),
    "device": (["model.device=abacus"], "abacus"),
    "threads": (["parallel.threads=0"], "parallel.threads=0"),
    "more ranks than were started": (["parallel.lp=3"], "lp=3"),
    "nccl without a GPU": (["parallel.exchange=nccl", "model.device=cpu"], "nccl"),
    "missing checkpoint": (["model.path=/no/such/folder"], "/no/such/folder"),
}


@pytest.mark.parametrize("name", BAD_ARGUMENTS)
def test_bad_arguments_give_one_message(name: str, main: Main, folder: str) -> None:
    arguments, expected = BAD_ARGUMENTS[name]
    code, out, err = main(f"model.path={folder}", "prompt=x", *arguments)
    messages = [line for line in err.splitlines() if not line.startswith("loaded")]
    assert code == 2
    assert out == ""
    assert len(messages) == 1, err
    assert messages[0].startswith("error: ")
    assert expected in messages[0]


BAD_PROMPTS = {
    "no prompt": ([], None, "give one of"),
    "empty prompt": (["prompt="], None, "give one of"),
    "two prompts": (["prompt=a", "prompt_file=bad"], b"b", "prompt and prompt_file"),
    "missing file": (["prompts=nowhere.jsonl"], None, "nowhere.jsonl cannot be read"),
    "malformed line": (["prompts=bad"], b'{"prompt": "a"}\n{"prompt": ', "bad, line 2 is not JSON"),
    "no text": (["prompts=bad"], b'{"text": "a"}', 'bad, line 1 has no text under "prompt"'),
    "wrong type": (["prompts=bad"], b'{"prompt": 3}', "bad, line 1 has no text"),
    "no lines": (["prompts=bad"], b"\n", "holds no prompts"),
    "invalid UTF-8": (["prompt_file=bad"], b"def \xff", "byte 4"),
    "lone surrogate": (["prompts=bad"], b'{"prompt": "a\\ud800"}', "bad, line 1: the prompt is not valid Unicode"),
    "too long": (["prompts=bad"], json.dumps({"prompt": "abc " * 3000}).encode(), "bad, line 1: the prompt has"),
}


@pytest.mark.parametrize("name", BAD_PROMPTS)
def test_bad_prompts_give_one_message_before_any_work(name: str, main: Main, folder: str, tmp_path: Path) -> None:
    arguments, content, expected = BAD_PROMPTS[name]
    if content is not None:
        (tmp_path / "bad").write_bytes(content)
    code, out, err = main(f"model.path={folder}", *arguments)
    messages = [line for line in err.splitlines() if not line.startswith("loaded")]
    assert (code, out) == (2, "")
    assert len(messages) == 1, err
    assert expected in messages[0]


def test_torchrun_with_two_ranks_gives_the_same_tokens(folder: str, tmp_path: Path) -> None:
    """The command of the README, on a tiny checkpoint."""
    shared = [f"model.path={folder}", "prompt=def fibonacci(n):", "max_new_tokens=40", "format=json"]
    window = ["decode=lookahead", "decode.window=7", "decode.ngram=5", "decode.guesses=7"]
    alone = commands.run("generate", [*shared, "decode=autoregressive"], tmp_path)
    together = commands.run("generate", [*shared, *window, "parallel=lp", "parallel.debug=true"], tmp_path, num_ranks=2)
    assert together.returncode == 0, together.stderr
    assert len(together.stdout.splitlines()) == 1
    one, two = json.loads(alone.stdout), json.loads(together.stdout)
    assert two["token_ids"] == one["token_ids"]
    assert (two["parallel"], two["ranks"]) == ("lp", 2)
    assert together.stderr.count("loaded") == 1
    assert list(tmp_path.iterdir()) == []


def test_single_mode_with_two_ranks_is_refused_once(folder: str, tmp_path: Path) -> None:
    result = commands.run("generate", [f"model.path={folder}", "prompt=x", "parallel=single"], tmp_path, num_ranks=2)
    assert result.returncode != 0
    assert result.stderr.count("error: parallel.mode=single") == 1


def test_interrupt_keeps_what_there_is(folder: str, tmp_path: Path) -> None:
    (tmp_path / "prompts.jsonl").write_text("\n".join(json.dumps({"prompt": "def f(x):"}) for _ in range(2000)))
    arguments = [
        f"model.path={folder}",
        "prompts=prompts.jsonl",
        "max_new_tokens=200",
        "format=json",
        "ignore_eos=true",
    ]
    child = subprocess.Popen(
        commands.command("generate", arguments),
        cwd=tmp_path,
        env=commands.environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert child.stdout
    first = child.stdout.readline()
    child.send_signal(signal.SIGINT)
    rest, err = child.communicate(timeout=60)
    records = [json.loads(line) for line in [first, *rest.splitlines()]]
    assert child.returncode == 130, err
    assert records[0]["finish_reason"] == "length"
    assert len(records) < 2000
    assert "Traceback" not in err


def test_a_reader_that_leaves_ends_the_program_quietly(folder: str, tmp_path: Path) -> None:
    (tmp_path / "prompts.jsonl").write_text("\n".join(json.dumps({"prompt": "def f(x):"}) for _ in range(2000)))
    arguments = [f"model.path={folder}", "prompts=prompts.jsonl", "max_new_tokens=50", "format=json", "ignore_eos=true"]
    child = subprocess.Popen(
        commands.command("generate", arguments),
        cwd=tmp_path,
        env=commands.environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert child.stdout and child.stderr
    child.stdout.readline()
    child.stdout.close()
    assert child.wait(timeout=60) == 128 + signal.SIGPIPE
    assert "Traceback" not in child.stderr.read()


def test_a_killed_rank_is_named_by_the_others(folder: str, tmp_path: Path) -> None:
    """Two ranks without torchrun, which would end the survivor itself."""
    (tmp_path / "prompts.jsonl").write_text("\n".join(json.dumps({"prompt": "def f(x):"}) for _ in range(5000)))
    arguments = [f"model.path={folder}", "prompts=prompts.jsonl", "max_new_tokens=50", "format=json"]
    port = str(free_port())
    ranks = []
    for rank in range(2):
        place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2, "MASTER_PORT": port}
        child = subprocess.Popen(
            commands.command("generate", arguments),
            cwd=tmp_path,
            env=commands.environment(MASTER_ADDR="127.0.0.1", **{key: str(value) for key, value in place.items()}),
            stdout=subprocess.PIPE if rank == 0 else subprocess.DEVNULL,
            stderr=subprocess.PIPE if rank == 0 else subprocess.DEVNULL,
            text=True,
        )
        ranks.append(child)
    assert ranks[0].stdout
    ranks[0].stdout.readline()
    os.kill(ranks[1].pid, signal.SIGKILL)
    killed_at = time.monotonic()
    _, err = ranks[0].communicate(timeout=60)
    assert ranks[0].returncode == 1
    assert "rank 1" in err.splitlines()[-1]
    assert "Traceback" not in err
    assert time.monotonic() - killed_at < 20
    ranks[1].wait()


def test_python_face(folder: str) -> None:
    """The example of the README."""
    code = (
        "from lp import Engine, Lookahead\n"
        f"engine = Engine.from_pretrained({folder!r}, dtype='float32')\n"
        "done = engine.generate('def f(', max_new_tokens=8, decode=Lookahead(window=7, ngram=5, guesses=7))\n"
        "parts = list(engine.stream('def f(', max_new_tokens=8))\n"
        "assert done.text == ''.join(part.text for part in parts)\n"
        "print(len(done.token_ids), done.finish_reason, done.stats.steps <= 8)\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=commands.CHECKOUT)
    assert result.stdout.split()[1] in ("length", "stop"), result.stderr
