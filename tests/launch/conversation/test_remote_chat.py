"""launch/chat.py url=...: with a real server, with servers that fail, and with none."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from lp import Engine
from lp.model.checkpoint import Checkpoint
from tests.launch.conversation.conftest import Chat
from tests.launch.conversation.test_piped_chat import FIGURES, answers
from tests.launch.server.harness import Running, serving


@pytest.fixture(scope="module")
def checkpoint(engine: Engine) -> Checkpoint:
    return engine.checkpoint


@pytest.fixture
def server(checkpoint: Checkpoint) -> Iterator[Running]:
    with serving(checkpoint) as running:
        yield running


def notes(err: str) -> list[str]:
    """The lines of stderr, without those of the server, which runs in this process as well."""
    return [line for line in err.splitlines() if not line.startswith("serving")]


def errors(err: str) -> list[str]:
    return [line for line in err.splitlines() if line.startswith("error: ")]


@pytest.mark.parametrize("suffix", ["", "/", "/v1"])
def test_a_server_answers_as_ranks_do(suffix: str, chat: Chat, server: Running, engine: Engine) -> None:
    first, second = answers(engine, "def f(", "and g", system="Be brief.")
    lines = "def f(\nand g\n/retry\n/clear\ndef f(\n"
    code, out, err = chat(f"url={server.url}{suffix}", "system=Be brief.", "max_tokens=12", lines=lines)
    assert (code, out) == (0, f"{first}\n{second}\n{second}\n{first}\n"), err
    assert len(notes(err)) == 4 and all(re.fullmatch(FIGURES, line) for line in notes(err)), err


def test_settings_reach_the_server(chat: Chat, server: Running, engine: Engine) -> None:
    sampled = answers(engine, "def f(", temperature=0.9, top_p=0.8, seed=5)[0]
    lines = "/set max_tokens=12\n/set top_p=0.8\n/set seed=5\ndef f(\n"
    arguments = ["sampling.temperature=0.9", "sampling.min_new_tokens=2", "decode=lookahead", "decode.window=3"]
    code, out, err = chat(f"url={server.url}", *arguments, lines=lines)
    assert (code, out) == (0, f"{sampled}\n"), err


def test_what_a_server_refuses_is_one_line(chat: Chat, server: Running, engine: Engine) -> None:
    expected = answers(engine, "def f(")[0]
    lines = ["abc " * 800, "forbidden", "/set decode.windw=3", "def f(", "/set decode.windw=", "def f("]
    code, out, err = chat(f"url={server.url}", "max_tokens=12", lines="\n".join(lines))
    assert (code, out) == (1, f"{expected}\n")
    found = errors(err)
    assert len(found) == 3, err
    assert "maximum context length is 640 tokens" in found[0] and found[0].endswith("/clear forgets the conversation")
    assert "mind your words" in found[1] and "decode.windw is not a setting of auto" in found[2]


def test_a_model_that_fails_is_reported(chat: Chat, server: Running) -> None:
    server.gate.error = RuntimeError("planted")
    code, out, err = chat(f"url={server.url}", lines="def f(\nand g\n")
    assert (code, out) == (1, "")
    assert errors(err)[0] == "error: the engine has stopped with an error; the server's log says which"
    assert len(errors(err)) == 2


def test_a_key_is_asked_for_and_sent(
    chat: Chat, checkpoint: Checkpoint, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(checkpoint, api_keys=["sesame"]) as running:
        code, out, err = chat(f"url={running.url}", lines="def f(\n")
        assert (code, out, len(notes(err))) == (2, "", 1), err
        assert "the API key is missing or wrong" in err and "LOOKAHEAD_API_KEY" in err
        expected = answers(engine, "def f(")[0] + "\n"
        given = [f"url={running.url}", "max_tokens=12"]
        assert chat(*given, "api_key=sesame", lines="def f(\n")[:2] == (0, expected)
        monkeypatch.setenv("LOOKAHEAD_API_KEY", "sesame")
        assert chat(*given, lines="def f(\n")[:2] == (0, expected)


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://127.0.0.1:1", "cannot be reached: [Errno 111] Connection refused; is launch/serve.py"),
        ("http://no-such-host.invalid:8000", "cannot be reached"),
        ("127.0.0.1:8000", "is no address of a server"),
        ("http://", "url=http:"),
        ("http://127.0.0.1:notaport", "cannot be used"),
        ("", "is no address of a server"),
    ],
)
def test_a_url_without_a_server_gives_one_line(url: str, expected: str, chat: Chat) -> None:
    code, out, err = chat(f"url={url}", lines="def f(\n")
    assert (code, out, len(err.splitlines())) == (2, "", 1), err
    assert err.startswith("error: url=") and expected in err


def test_settings_of_ranks_are_refused_beside_a_url(chat: Chat) -> None:
    code, _, err = chat("url=http://127.0.0.1:1", "parallel.ranks=2", lines="")
    assert code == 2 and "parallel" in err and len(err.splitlines()) == 1


MODELS = json.dumps({"data": [{"id": "fake"}]}).encode()
CHUNK = b'data: {"choices": [{"delta": {"content": "half"}, "finish_reason": null}]}\n\n'
FINISHED = b'data: {"choices": [{"delta": {}, "finish_reason": "stop"}]}\n\ndata: [DONE]\n\n'


@contextmanager
def pretended_server(answer: bytes, status: int = 200, models: bytes = MODELS) -> Iterator[str]:
    """A server that gives these bytes to every chat, and then closes the connection."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._send(200, models)

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self._send(status, answer)

        def _send(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


FAILURES = {
    "cut off": (CHUNK, 200, "half\n", "ended the answer before it was finished"),
    "an error in the midst": (CHUNK + b'data: {"error": {"message": "too\\nhot"}}\n\n', 200, "half\n", "too hot"),
    "not JSON": (b"data: half\n\n", 200, "", "not an event of OpenAI's API"),
    "a status without a body": (b"<html>", 503, "", "HTTP status 503"),
    "an error of another form": (b'{"error": "busy"}', 500, "", "busy"),
}


@pytest.mark.parametrize("name", FAILURES)
def test_servers_that_fail_give_one_line(name: str, chat: Chat) -> None:
    answer, status, shown, expected = FAILURES[name]
    with pretended_server(answer, status) as url:
        code, out, err = chat(f"url={url}", lines="hello\n")
    assert (code, out) == (1, shown)
    assert len(errors(err)) == 1 and expected in errors(err)[0], err


def test_a_server_that_tells_no_figures_is_good_enough(chat: Chat) -> None:
    with pretended_server(CHUNK + FINISHED) as url:
        code, out, err = chat(f"url={url}", lines="hello\n")
    assert (code, out) == (0, "half\n")
    assert re.fullmatch(r"first text after \d+ ms", err.strip())


def test_something_else_that_speaks_http_is_refused(chat: Chat) -> None:
    with pretended_server(b"", models=b"<html>") as url:
        code, _, err = chat(f"url={url}", lines="hello\n")
    assert code == 2 and "does not answer as an OpenAI server does (HTTP status 200" in err
