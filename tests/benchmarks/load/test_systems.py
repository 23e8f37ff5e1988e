"""Which systems the command line names, and how their servers are started."""

from __future__ import annotations

import sys
import time

import psutil
import pytest

from benchmarks.load.prompts import LoadRequest
from benchmarks.load.systems import own, transformers_server
from benchmarks.load.systems.dialects import Api, of_transformers, with_ignore_eos
from benchmarks.load.systems.processes import started_process
from benchmarks.load.systems.specs import ServerNeeds, SystemKind, Unavailable, read_system, read_systems
from tests.launch.server import harness

NEEDS = ServerNeeds("/models/m", "bfloat16", 2, 1, 16, 600)


def test_systems_are_read():
    auto, lp = read_system("auto="), read_system("lp=parallel=lp decode=auto")
    assert (auto.kind, auto.words) == (SystemKind.own, ())
    assert (lp.name, lp.kind, lp.words) == ("lp", SystemKind.own, ("parallel=lp", "decode=auto"))
    static = read_system("static=servers:3 decode=auto")
    assert (static.kind, static.number, static.words) == (SystemKind.servers, 3, ("decode=auto",))
    peer = read_system("peer=transformers --attn-implementation eager")
    assert (peer.kind, peer.words) == (SystemKind.transformers, ("--attn-implementation", "eager"))
    assert read_system("other=url:http://host:8000/").url == "http://host:8000"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("auto", "not NAME=OVERRIDES"),
        ("two words=", "not NAME=OVERRIDES"),
        ("a=servers:0", "at least 1"),
        ("a=servers:two", "at least 1"),
        ("a=plain", "'plain' is not KEY=VALUE"),
        ("a='decode=auto", "closing"),
        ("a=url:host:8000", "not the address of a server"),
    ],
)
def test_a_wrong_system_is_refused(text: str, said: str):
    with pytest.raises(ValueError, match=said):
        read_system(text)


def test_names_differ_and_a_url_alone_is_a_system():
    with pytest.raises(ValueError, match="two systems are called 'a'"):
        read_systems(["a=", "a=decode=auto"], [])
    assert [one.name for one in read_systems([], [])] == ["auto", "plain", "transformers"]
    assert [one.name for one in read_systems([], ["http://one:1"])] == ["url"]
    assert [one.name for one in read_systems(["a="], ["http://one:1", "http://two:2"])] == ["a", "url1", "url2"]


def test_our_server_gets_room_for_the_load_and_overrides_win():
    command = own.serve_command(NEEDS, 2, ("server.max_running=4", "decode=auto"))
    assert {"launcher=local", "parallel.ranks=2", "model.path=/models/m", "model.dtype=bfloat16"} <= set(command)
    assert command[-2:] == ["server.max_running=4", "decode=auto"] and "server.max_running=16" not in command
    alone = own.serve_command(NEEDS, 1, ())
    assert "server.max_running=16" in alone and "launcher=torchrun" in alone
    assert not any(word.startswith("parallel.ranks") for word in alone)
    assert own.count_ranks(NEEDS, ("parallel.ranks=4",)) == 4 and own.count_ranks(NEEDS, ()) == 2


def test_transformers_gets_blocks_for_all_streams():
    command = transformers_server.serve_command(NEEDS, 1234, ("--compile",))
    assert command[-1] == "--compile" and "--continuous-batching" in command
    assert command[command.index("--cb-num-blocks") + 1] == str(16 * 3 + transformers_server.SPARE_BLOCKS)


def test_all_dialects_ask_for_the_same_text():
    request = LoadRequest("a prompt", "a question", 12)
    path, ours = with_ignore_eos(Api.completions)(request)
    _, peers = of_transformers(Api.completions)(request)
    assert path == "/v1/completions" and ours["ignore_eos"] and "model" not in ours
    assert '"eos_token_id": -1' in peers["generation_config"] and "ignore_eos" not in peers
    for body in (ours, peers):
        assert (body["prompt"], body["max_tokens"], body["temperature"]) == ("a prompt", 12, 0.0)
    path, chat = with_ignore_eos(Api.chat, "m")(request)
    assert path == "/v1/chat/completions" and chat["model"] == "m"
    assert chat["messages"] == [{"role": "user", "content": "a question"}]


@pytest.mark.parametrize("module", [own, transformers_server], ids=lambda module: module.__name__)
def test_a_server_that_does_not_start_is_unavailable_with_its_last_words(module, monkeypatch: pytest.MonkeyPatch):
    script = "import sys; sys.exit('error: the model has no layers')"
    monkeypatch.setattr(module, "serve_command", lambda *_: [sys.executable, "-c", script])
    make = {own: own.own_system, transformers_server: transformers_server.transformers_system}[module]
    with (
        pytest.raises(Unavailable, match="exit code 1: error: the model has no layers"),
        make(read_system("a="), NEEDS, Api.completions),
    ):
        pass


def test_a_process_that_ends_is_told_with_its_last_words():
    script = "import time; print('bye', flush=True); time.sleep(0.05); raise SystemExit(3)"
    with started_process([sys.executable, "-c", script], threads=1) as process:
        process.popen.wait(20)
        assert process.find_trouble() == "its process ended with exit code 3: bye"


def is_gone(process: psutil.Process) -> bool:
    """Whether it has ended; an orphan that nobody has asked for its exit code remains as a zombie."""
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_what_a_process_has_started_ends_with_it():
    script = "import subprocess, time; subprocess.Popen(['sleep', '60']); print('up', flush=True); time.sleep(60)"
    with started_process([sys.executable, "-c", script], threads=1) as process:
        deadline = time.monotonic() + 20
        while process.log.read_text() != "up\n" and time.monotonic() < deadline:
            time.sleep(0.02)
        family = [psutil.Process(process.popen.pid), *psutil.Process(process.popen.pid).children()]
        assert len(family) == 2 and process.find_trouble() is None
    harness.eventually(lambda: all(map(is_gone, family)))
