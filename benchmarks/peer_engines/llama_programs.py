"""llama.cpp's programs for one text as compared engines: lookup, lookahead, and its own benchmark without drafts.

A program reads a prompt as text, which must become the same number of tokens as the prompt has.
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.peer_engines.base import PeerPrompt, PeerText, Unavailable

BENCH = "llama.cpp, llama-bench"
# Seconds that a program may take for one text.
TIMEOUT_S = 300
READ = re.compile(r"encoded +(\d+) tokens in +([\d.]+) seconds")
DECODED = re.compile(r"decoded +(\d+) tokens in +([\d.]+) seconds")
# The format of the KV cache: that of the computation in float32, the program's own default otherwise.
CACHE_OPTIONS = {"float32": ["-ctk", "f32", "-ctv", "f32"]}


class TextProgram:
    """llama-lookup or llama-lookahead. Each text starts the program anew; its own clock leaves out the loading."""

    def __init__(self, program: Path, weights: Path, dtype: str, threads: int):
        self.name = f"llama.cpp, {program.name}"
        self._command = [str(program), "-m", str(weights), "-t", str(threads), "--temp", "0", "--no-escape"]
        self._command += CACHE_OPTIONS.get(dtype, [])

    def decode(self, prompt: PeerPrompt, max_new_tokens: int) -> PeerText:
        room = len(prompt.tokens) + 2 * max_new_tokens + 512  # lookahead also caches the rows of its window
        with TemporaryDirectory() as folder:
            file = Path(folder) / "prompt.txt"
            file.write_text(prompt.text + "\n", encoding="utf-8")  # the program removes one line end
            printed, told = run(
                [*self._command, "-f", str(file), "-n", str(max_new_tokens - 1), "-c", str(room)], self.name
            )
        read, decoded = READ.search(told), DECODED.search(told)
        if not read or not decoded:
            raise Unavailable(f"{self.name} printed no times")
        if int(read[1]) != len(prompt.tokens):
            raise Unavailable(f"{self.name} makes {read[1]} tokens of a prompt that has {len(prompt.tokens)}")
        text = printed.lstrip("\n").removeprefix(prompt.text.lstrip("\n"))
        # The first token comes from the logits of the prompt, before the clock of the decoding starts.
        return PeerText(int(decoded[1]), 1, float(read[2]), float(decoded[2]), text=text)

    def close(self) -> None:
        """Nothing is held between two texts."""


class BenchProgram:
    """llama-bench: decoding without drafts on made-up tokens, after as many as the prompt has.

    It has no text, and its KV cache is in float16, as it knows no float32 there.
    """

    def __init__(self, program: Path, weights: Path, threads: int):
        self.name = BENCH
        self._command = [str(program), "-m", str(weights), "-t", str(threads), "-r", "1", "-o", "json"]

    def decode(self, prompt: PeerPrompt, max_new_tokens: int) -> PeerText:
        num_read = len(prompt.tokens)
        printed, _ = run([*self._command, "-p", str(num_read), "-n", "0"], self.name)
        prompt_s = bench_seconds(printed, self.name)
        printed, _ = run([*self._command, "-p", "0", "-n", str(max_new_tokens), "-d", str(num_read)], self.name)
        return PeerText(max_new_tokens, 0, prompt_s, bench_seconds(printed, self.name))

    def close(self) -> None:
        """Nothing is held between two texts."""


def bench_seconds(printed: str, name: str) -> float:
    """The time that llama-bench printed. Raises Unavailable."""
    try:
        (figures,) = json.loads(printed)
        return figures["avg_ns"] / 1e9
    except (ValueError, KeyError, TypeError):
        raise Unavailable(f"{name} printed no times") from None


def run(command: list[str], name: str) -> tuple[str, str]:
    """What a program prints on standard output and on standard error. Raises Unavailable if it fails."""
    try:
        done = subprocess.run(command, capture_output=True, timeout=TIMEOUT_S, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired:
        raise Unavailable(f"{name} was not done after {TIMEOUT_S} s") from None
    except OSError as error:
        raise Unavailable(f"{name} cannot be started: {error.strerror}") from error
    told = done.stderr.decode(errors="replace")
    if done.returncode:
        raise Unavailable(f"{name} {how_it_ended(done.returncode)}: {last_line(told)}")
    return done.stdout.decode(errors="replace"), told


def how_it_ended(code: int) -> str:
    return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"


def last_line(told: str) -> str:
    lines = [line.strip() for line in told.splitlines() if line.strip()]
    return lines[-1][:200] if lines else "it said nothing"
