"""What llama.cpp's programs print and answer is read as it should be. The programs are stand-ins."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.peer_engines.base import PeerPrompt, PeerText, Unavailable
from benchmarks.peer_engines.comparison import compare, same_text
from benchmarks.peer_engines.llama_programs import BenchProgram, TextProgram
from benchmarks.peer_engines.llama_server import ServerPeer, kinds_of_drafts
from benchmarks.peer_engines.llama_weights import make_weights
from lp.platform import disk_cache

PROMPT = PeerPrompt("code", "\ndef f(x):\n", [1, 2, 3])
LOOKUP = """
import sys
options = dict(zip(sys.argv[1::1], sys.argv[2::1]))
assert "--no-escape" in sys.argv and options["-t"] == "2" and options["-ctk"] == "f32"
prompt = open(options["-f"]).read()[:-1]
print("\\n\\n" + prompt + "    return x", end="\\n\\n")
print("0.1 I encoded    3 tokens in    0.500 seconds, speed: 1 t/s", file=sys.stderr)
print(f"0.2 I decoded    {int(options['-n']) + 3} tokens in    2.000 seconds, speed: 1 t/s", file=sys.stderr)
"""
BENCH = """
import json, sys
options = dict(zip(sys.argv[1::1], sys.argv[2::1]))
print(json.dumps([{"avg_ns": 2e9 if options["-n"] == "0" else 1e9}]))
"""
SERVER = """
import json, sys
from http.server import BaseHTTPRequestHandler, HTTPServer
if "--help" in sys.argv:
    print("--spec-type none,draft-simple,ngram-simple,ngram-mod   kinds of drafts")
    raise SystemExit
class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.answer({"status": "ok"})
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        assert body["prompt"] == [1, 2, 3] and body["temperature"] == 0 and not body["cache_prompt"]
        timings = {"predicted_n": 4, "prompt_ms": 500.0, "predicted_ms": 1500.0}
        self.answer({"tokens": [7, 8, 9, 10], "timings": timings})
    def answer(self, value):
        data = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
HTTPServer(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])), Handler).serve_forever()
"""


@pytest.fixture
def program(tmp_path: Path) -> Callable[[str, str], Path]:
    """Makes a program of a Python text."""

    def make(name: str, text: str) -> Path:
        path = tmp_path / name
        path.write_text(f"#!{sys.executable}\n{text}")
        path.chmod(0o755)
        return path

    return make


def test_lookup(program: Callable[[str, str], Path]) -> None:
    peer = TextProgram(program("llama-lookup", LOOKUP), Path("x.gguf"), "float32", 2)
    text = peer.decode(PROMPT, 16)
    assert (text.num_tokens, text.num_first, text.prompt_s, text.decode_s) == (18, 1, 0.5, 2.0)
    assert text.tokens is None and text.text == "    return x\n\n"


def test_a_prompt_that_becomes_other_tokens_is_told(program: Callable[[str, str], Path]) -> None:
    peer = TextProgram(program("llama-lookup", LOOKUP), Path("x.gguf"), "float32", 2)
    with pytest.raises(Unavailable, match="llama-lookup makes 3 tokens of a prompt that has 2"):
        peer.decode(PeerPrompt("code", "def", [1, 2]), 16)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("raise SystemExit('no such model')", "ended with exit code 1: no such model"),
        ("import os; os.kill(os.getpid(), 11)", "was ended by SIGSEGV: it said nothing"),
        ("", "printed no times"),
    ],
)
def test_a_program_that_fails_is_told(text: str, reason: str, program: Callable[[str, str], Path]) -> None:
    with pytest.raises(Unavailable, match=f"llama.cpp, broken {reason}"):
        TextProgram(program("broken", text), Path("x.gguf"), "bfloat16", 2).decode(PROMPT, 16)


def test_bench_has_times_and_no_text(program: Callable[[str, str], Path]) -> None:
    text = BenchProgram(program("llama-bench", BENCH), Path("x.gguf"), 2).decode(PROMPT, 16)
    assert (text.num_tokens, text.num_first, text.prompt_s, text.decode_s) == (16, 0, 2.0, 1.0)
    assert text.tokens is None and text.text is None


def test_server(program: Callable[[str, str], Path]) -> None:
    server = program("llama-server", SERVER)
    assert kinds_of_drafts(server) == ["ngram-simple", "ngram-mod"]
    peer = ServerPeer(server, Path("x.gguf"), "float32", 2, 64, "ngram-mod")
    try:
        text = peer.decode(PROMPT, 4)
    finally:
        peer.close()
    assert peer.name == "llama.cpp, server, ngram-mod"
    assert text == PeerText(4, 1, 0.5, 1.5, [7, 8, 9, 10])


def test_a_server_that_ends_is_told(program: Callable[[str, str], Path]) -> None:
    peer = ServerPeer(program("llama-server", "raise SystemExit('no room')"), Path("x.gguf"), "float32", 2, 64, None)
    with pytest.raises(Unavailable, match="server, plain ended with exit code 1: no room"):
        peer.decode(PROMPT, 4)
    peer.close()


def test_weights_are_made_once(program: Callable[[str, str], Path], tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv(disk_cache.VARIABLE, str(tmp_path / "cache"))
    source = tmp_path / "tiny.gguf"
    source.write_bytes(b"GGUF")
    quantize = program("llama-quantize", "import sys; open(sys.argv[3], 'w').write(sys.argv[4])")
    made = make_weights(tmp_path, source, "bfloat16")
    assert made.read_text() == "BF16"
    quantize.unlink()
    assert make_weights(tmp_path, source, "bfloat16") == made
    for path, dtype, reason in (
        (tmp_path, "float32", "its weights are made of a GGUF file"),
        (source, "float16", "in float32 and bfloat16 only"),
        (source, "float32", "the weights cannot be made: No such file"),
    ):
        with pytest.raises(Unavailable, match=reason):
            make_weights(tmp_path, path, dtype)


def test_texts_are_compared_without_their_end() -> None:
    def text(tokens: list[int] | None = None, printed: str | None = None) -> PeerText:
        return PeerText(3, 1, 1.0, 1.0, tokens, printed)

    assert same_text(text([5, 6]), [5, 6, 2], "ab.", eos=[2])
    assert same_text(text([5, 6, 7]), [5, 6], "ab", eos=[2])
    assert not same_text(text([5, 6, 7]), [5, 6, 2], "ab.", eos=[2])
    assert same_text(text(printed="abc"), [5, 6], "ab�", eos=[2])
    assert not same_text(text(printed="abc"), [5, 6], "ac", eos=[2])
    assert same_text(text(), [5, 6], "ab", eos=[2]) is None


class OneText:
    """An engine that breaks after some texts."""

    def __init__(self, name: str, num_texts: int):
        self.name = name
        self.left = num_texts

    def decode(self, prompt: PeerPrompt, max_new_tokens: int) -> PeerText:
        self.left -= 1
        if self.left < 0:
            raise Unavailable("it broke")
        return PeerText(4, 1, 1.0, 1.5, [1])

    def close(self) -> None:
        pass


def test_an_engine_that_breaks_in_a_round_is_left_out() -> None:
    found = compare("float32", [OneText("whole", 9), OneText("broken", 4), OneText("late", 1)], [PROMPT] * 2, 8, 2)
    assert [record.name for record in found.records] == ["whole"]
    assert found.records[0].decoding_rates() == [2.0, 2.0] and found.records[0].whole_rates() == [1.6, 1.6]
    assert found.skipped == {"broken": "it broke", "late": "it broke"}
