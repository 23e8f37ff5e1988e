"""The commands of `lookahead`, and what their lines may have. What a command does, its own docstring says."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass, field

from launch.program.resources import PACKAGE, conf


@dataclass(frozen=True)
class Program:
    """A command.

    module: what runs it, as launch/MODULE.py. configuration: the file of conf/ with its settings; None if it has none.
    examples: what may follow its name. ranks: the arguments that start that number of ranks; None if it is for one
    rank. spawns: whether its ranks are processes that are started for it, as torchrun would. takes_model: whether a
    model may be named without a key. flags: the argument that each option without a value stands for.
    """

    module: str
    configuration: str | None
    examples: tuple[str, ...]
    ranks: tuple[str, ...] | None = None
    spawns: bool = False
    takes_model: bool = True
    flags: Mapping[str, str] = field(default_factory=dict)

    @property
    def summary(self) -> str:
        return self._docstring.splitlines()[0]

    @property
    def description(self) -> list[str]:
        """The docstring's paragraphs but for the summary and for commands, which are those of a checkout."""
        paragraphs = self._docstring.split("\n\n")[1:]
        return [" ".join(paragraph.split()) for paragraph in paragraphs if not paragraph.startswith("    ")]

    @property
    def _docstring(self) -> str:
        """The module's docstring, read without importing it."""
        path = PACKAGE / f"{self.module}.py"
        return ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""


_GROUP = ("parallel.ranks={ranks}",)
_SWEPT = ("parallel=auto", *_GROUP)  # a sweep's own default is one rank
_MULTIRUN = {"-m": "-m", "--multirun": "-m"}
_MODEL = "Qwen/Qwen3-0.6B"

PROGRAMS = {
    "chat": Program("chat", "chat", ("", f"{_MODEL} --ranks 2", "url=http://127.0.0.1:8000"), _GROUP),
    "generate": Program(
        "generate",
        "generate",
        ('prompt="def fibonacci(n):"', 'smollm2 --ranks 2 chat=true prompt="What is a prime number?"'),
        ranks=(),
        spawns=True,
    ),
    "serve": Program(
        "serve", "serve", ("smollm2", f"{_MODEL} --ranks 2 server.port=9000"), ("launcher=local", *_GROUP)
    ),
    "bench": Program(
        "bench",
        "bench",
        ("smollm2 decode=autoregressive", "demo --ranks 2 -m parallel=lp,dp decode=auto,lookahead output=results"),
        ranks=_SWEPT,
        flags=_MULTIRUN,
    ),
    "tune": Program("tune", "tune", ("smollm2", "smollm2 --ranks 2"), ranks=(), spawns=True),
    "index": Program("index", "index", ("smollm2", "smollm2 prompts=FILE.jsonl chat=true")),
    "cache": Program("cache", "cache", ("", "keep_gb=5", "clear=gguf"), takes_model=False),
    "ray serve": Program("ray_job", "ray_serve", (f"{_MODEL} --ranks 4 ray.address=HOST:PORT",), _GROUP),
    "ray generate": Program("ray_job", "ray_generate", ('smollm2 --ranks 4 prompt="Hello"',), _GROUP),
    "ray bench": Program("ray_job", "bench", ("smollm2 --ranks 2 -m parallel=lp,tp",), _SWEPT, flags=_MULTIRUN),
    "demo": Program("demo", None, ("", "--ranks 4"), ("--ranks={ranks}",), takes_model=False),
    "doctor": Program("doctor", "doctor", ("", f"{_MODEL} --ranks 4", "--json"), _GROUP, flags={"--json": "json=true"}),
}


def models() -> list[str]:
    """The names of the models that need no path: those of conf/model."""
    return sorted(file.stem for file in (conf() / "model").glob("*.yaml") if file.stem != "checkpoint")
