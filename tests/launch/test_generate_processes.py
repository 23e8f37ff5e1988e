"""launch/generate.py in processes of its own: several ranks, signals, readers that leave or pause, ranks that die."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.launch import commands
from tests.launch.conftest import Main
from tests.slow import exhaustive_except


@pytest.mark.slow
def test_torchrun_with_two_ranks_gives_the_same_tokens(main: Main, folder: str, tmp_path: Path) -> None:
    """Runs the command of docs/usage.md on a tiny checkpoint."""
    shared = [f"model.path={folder}", "prompt=def fibonacci(n):", "max_new_tokens=40", "format=json"]
    window = ["decode=lookahead", "decode.window=7", "decode.ngram=5", "decode.guesses=7"]
    _, alone, _ = main(*shared, "decode=autoregressive")
    together = commands.run("generate", [*shared, *window, "parallel=lp", "parallel.debug=true"], tmp_path, num_ranks=2)
    assert together.returncode == 0, together.stderr
    assert len(together.stdout.splitlines()) == 1
    one, two = json.loads(alone), json.loads(together.stdout)
    assert two["token_ids"] == one["token_ids"]
    assert (two["parallel"], two["ranks"]) == ("lp", 2)
    assert together.stderr.count("loaded") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.exhaustive
def test_replicas_of_several_ranks_give_the_same_sampled_tokens(main: Main, folder: str, tmp_path: Path) -> None:
    shared = [f"model.path={folder}", "prompt=def f(", "max_new_tokens=20", "format=json", "ignore_eos=true"]
    shared += ["sampling.temperature=0.8", "sampling.seed=4"]
    alone = json.loads(main(*shared)[1])
    together = commands.run("generate", [*shared, "parallel.lp=2", "parallel.tp=2"], tmp_path, num_ranks=4)
    assert together.returncode == 0, together.stderr
    record = json.loads(together.stdout)
    assert record["token_ids"] == alone["token_ids"] and len(record["token_ids"]) == 20
    assert (record["parallel"], record["ranks"]) == ("lp x tp", 4)


@pytest.mark.slow
def test_degrees_that_do_not_fit_are_refused_once(folder: str, tmp_path: Path) -> None:
    degrees = ["parallel.lp=2", "parallel.tp=2"]
    result = commands.run("generate", [f"model.path={folder}", "prompt=x", *degrees], tmp_path, num_ranks=2)
    assert result.returncode != 0
    assert result.stderr.count("error: parallel.lp=2 * parallel.tp=2 needs 4 rank(s), but there are 2") == 1


@pytest.mark.exhaustive
def test_single_mode_with_two_ranks_is_refused_once(folder: str, tmp_path: Path) -> None:
    result = commands.run("generate", [f"model.path={folder}", "prompt=x", "parallel=single"], tmp_path, num_ranks=2)
    assert result.returncode != 0
    assert result.stderr.count("error: parallel.mode=single") == 1


@pytest.mark.slow
def test_interrupt_keeps_the_texts_so_far(folder: str, tmp_path: Path) -> None:
    prompts = commands.write_prompts(tmp_path, 2000)
    arguments = [
        f"model.path={folder}",
        prompts,
        "max_new_tokens=40",
        "format=json",
        "ignore_eos=true",
    ]
    child = commands.start("generate", arguments, tmp_path)
    assert child.stdout
    first = child.stdout.readline()
    child.send_signal(signal.SIGINT)
    rest, err = child.communicate(timeout=60)
    records = [json.loads(line) for line in [first, *rest.splitlines()]]
    assert child.returncode == 130, err
    assert records[0]["finish_reason"] == "length"
    assert len(records) < 2000
    assert "Traceback" not in err


@pytest.mark.parametrize(
    "shown",
    exhaustive_except(
        [["format=json"], ["format=text"], ["format=text", "color=always"]], ["format=text", "color=always"]
    ),
)
def test_a_reader_that_leaves_ends_the_program_quietly(shown: list[str], folder: str, tmp_path: Path) -> None:
    """The reader closes its end of the pipe after one line, as `head -1` does."""
    prompts = commands.write_prompts(tmp_path, 2000)
    arguments = [f"model.path={folder}", prompts, "max_new_tokens=50", "ignore_eos=true", *shown]
    child = commands.start("generate", arguments, tmp_path)
    assert child.stdout and child.stderr
    child.stdout.readline()
    child.stdout.close()
    assert child.wait(timeout=60) == 128 + signal.SIGPIPE
    errors = child.stderr.read()
    assert "Traceback" not in errors and "BrokenPipe" not in errors


@pytest.mark.slow
def test_a_reader_that_pauses_gets_everything(folder: str, tmp_path: Path) -> None:
    """The pause is longer than the ranks wait for each other, and the output is much larger than the pipe."""
    prompt = "def f(x):" * 20
    prompts = commands.write_prompts(tmp_path, 40, prompt)
    arguments = [f"model.path={folder}", prompts, "max_new_tokens=8", "ignore_eos=true"]
    child = commands.start("generate", [*arguments, "parallel.timeout_s=2"], tmp_path, num_ranks=2, pipe_bytes=4096)
    assert child.stdout
    first = child.stdout.read(len(prompt))
    time.sleep(4)
    rest, err = child.communicate(timeout=60)
    assert child.returncode == 0, err
    assert (first + rest).count(prompt) == 40
    assert err.count("finish reason: length") == 40


@pytest.mark.slow
def test_a_full_disk_gives_one_message_and_ends_the_other_rank(folder: str, tmp_path: Path) -> None:
    prompts = commands.write_prompts(tmp_path, 2000)
    arguments = [f"model.path={folder}", prompts, "max_new_tokens=50", "format=json"]
    leader, follower = commands.start_ranks("generate", arguments, tmp_path, stdout=open("/dev/full", "wb"))  # noqa: SIM115
    _, err = leader.communicate(timeout=60)
    assert leader.returncode == 2
    assert [line for line in err.splitlines() if line.startswith("error: ")] == [
        "error: [Errno 28] No space left on device"
    ]
    assert "Traceback" not in err and "Exception" not in err
    assert follower.wait(timeout=10) == 0


@pytest.mark.slow
def test_a_killed_rank_is_named_by_the_others(folder: str, tmp_path: Path) -> None:
    prompts = commands.write_prompts(tmp_path, 5000)
    arguments = [f"model.path={folder}", prompts, "max_new_tokens=50", "format=json"]
    ranks = commands.start_ranks("generate", arguments, tmp_path, stdout=subprocess.PIPE)
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


@pytest.mark.slow
def test_python_interface(folder: str) -> None:
    """Runs the example of docs/usage.md."""
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
