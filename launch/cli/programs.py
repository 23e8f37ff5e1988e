"""The commands of `lookahead`: what their lines may have, and the help texts made of that and of their docstrings."""

from __future__ import annotations

import ast
import shutil
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from launch.config.reference import Setting, choices_of, settings_of
from launch.config.resources import PACKAGE, conf


@dataclass(frozen=True)
class Option:
    """An option with a value, named as in vLLM.

    settings: what it stands for. takes_several: whether it may be given again: the last setting is then a list of the
    values that are left once each setting before it has one. is_ranks: whether its value is a number of ranks.
    """

    name: str
    value: str
    settings: tuple[str, ...]
    meaning: str
    takes_several: bool = False
    is_ranks: bool = False


OPTIONS = {
    option.name: option
    for option in (
        Option("--host", "ADDRESS", ("server.host",), "address to listen on; 0.0.0.0 is all (127.0.0.1)"),
        Option("--port", "N", ("server.port",), "port to listen on; 0 picks a free one (8000)"),
        Option("--api-key", "KEY", ("server.api_keys",), "key that clients must send; may be given again", True),
        Option(
            "--served-model-name", "NAME", ("server.model_name", "server.model_names"),
            "the model's name for clients; may be given again for other names", True,
        ),
        Option("--max-num-seqs", "N", ("server.max_running",), "requests that decode at the same time (64)"),
        Option("--dtype", "DTYPE", ("model.dtype",), "auto, float32, bfloat16 or float16"),
        Option("--device", "DEVICE", ("model.device",), "auto, cpu or cuda"),
        Option("--max-model-len", "N", ("model.max_length",), "most tokens of a request, prompt included"),
        Option(
            "--tensor-parallel-size", "N", ("parallel",), "runs N ranks, each of which holds a part of every layer",
            is_ranks=True,
        ),
        Option("--decode", "METHOD", ("decode",), "the decoding method (auto)"),
    )
}  # fmt: skip
_OF_MODELS = ("--dtype", "--device", "--max-model-len", "--tensor-parallel-size", "--decode")


@dataclass(frozen=True)
class Program:
    """A command.

    module: what runs it, as launch/MODULE.py. configuration: the file of conf/ with its settings; None if it has none.
    examples: what may follow its name. ranks: the arguments that start that number of ranks; None if it is for one
    rank. spawns: whether its ranks are processes that are started for it, as torchrun would. takes_model: whether a
    model may be named without a key. flags: the argument that each option without a value stands for.
    options: names of those with a value, which are settings that many people use.
    """

    module: str
    configuration: str | None
    examples: tuple[str, ...]
    ranks: tuple[str, ...] | None = None
    spawns: bool = False
    takes_model: bool = True
    flags: Mapping[str, str] = field(default_factory=dict)
    options: tuple[str, ...] = ()

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
    "chat": Program(
        "chat", "chat", ("", f"{_MODEL} --ranks 2", "url=http://127.0.0.1:8000"), _GROUP, options=_OF_MODELS
    ),
    "generate": Program(
        "generate",
        "generate",
        ('prompt="def fibonacci(n):"', 'smollm2 --ranks 2 chat=true prompt="What is a prime number?"'),
        ranks=(),
        spawns=True,
        options=_OF_MODELS,
    ),
    "serve": Program(
        "serve",
        "serve",
        ("smollm2", f"{_MODEL} --ranks 2 --port 9000", "smollm2 --host 0.0.0.0 --api-key KEY server.max_waiting=16"),
        ("launcher=local", *_GROUP),
        options=tuple(OPTIONS),
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


# What the types of Python are called.
_KINDS = {
    "str": "text",
    "int": "whole number",
    "float": "number",
    "list[str]": "[text,...]",
    "list[int]": "[number,...]",
}
_INTRODUCTION = "Faster text from an ordinary Hugging Face checkpoint, by lookahead decoding, on one device or several."
_ABOUT_MODELS = (
    "MODEL is a hub id (Qwen/Qwen3-0.6B), a folder, a GGUF file, or one of {names}. --ranks N runs N ranks on this "
    "machine, or reserves them on a Ray cluster."
)


def overview() -> str:
    """What `lookahead --help` shows."""
    lines = ["usage: lookahead COMMAND [MODEL] [--ranks N] [KEY=VALUE ...]", "       lookahead --version", ""]
    lines += [*_wrap(_INTRODUCTION), ""]
    for name, summary in _summaries().items():
        lines += _wrap(summary, f"  {name:10}", " " * 12)
    about_help = "`lookahead COMMAND --help` says what a command takes, and --help-all lists all its settings."
    lines += ["", *_about_models(), "", *_wrap(about_help)]
    return "\n".join(lines)


def _summaries() -> dict[str, str]:
    """Returns what each command does. Those of two words share a line."""
    found: dict[str, str] = {}
    for name, program in PROGRAMS.items():
        first, _, task = name.partition(" ")
        found[first] = found.get(first, program.summary) + (f" [{first} {task}]" if task else "")
    return found


def describe(name: str, is_whole: bool = True) -> str:
    """What `lookahead COMMAND --help-all` shows. is_whole: whether settings are shown for which there are options."""
    program = PROGRAMS[name]
    words = ["usage: lookahead", name, *(["[MODEL]"] if program.takes_model else [])]
    words += ["[--ranks N]"] if program.ranks is not None else []
    words += [f"[{'|'.join(option for option in program.flags)}]"] if program.flags else []
    words += ["[OPTIONS]"] if program.options else []
    lines = [" ".join([*words, "[KEY=VALUE ...]" if program.configuration else ""]).rstrip(), ""]
    lines += _wrap(program.summary)
    for paragraph in program.description:
        lines += ["", *_wrap(paragraph)]
    lines += ["", "Examples:", *(f"  lookahead {name} {example}".rstrip() for example in program.examples)]
    lines += ["", *_about_models()] if program.takes_model else []
    if program.options:
        lines += ["", "Options:", *_options(program.options)]
    if program.options and not is_whole:
        lines += ["", *_wrap(f"All other settings are written as KEY=VALUE: lookahead {name} --help-all lists them.")]
    elif program.configuration:
        lines += ["", *_choices(program.configuration), *_settings(program.configuration)]
    return "\n".join(lines)


def tasks_of(first: str) -> list[str]:
    """The second words of the commands of two words that begin with this one."""
    return [name.split()[1] for name in PROGRAMS if name.startswith(f"{first} ")]


def describe_tasks(first: str) -> str:
    """What the help of a command of two words shows if the second one is missing."""
    tasks = tasks_of(first)
    names = [f"{first} {task}" for task in tasks]
    lines = [f"usage: lookahead {first} {'|'.join(tasks)} [MODEL] [--ranks N] [KEY=VALUE ...]", ""]
    lines += [*_wrap(PROGRAMS[names[0]].summary), "", "Examples:"]
    lines += [f"  lookahead {name} {example}" for name in names for example in PROGRAMS[name].examples]
    return "\n".join([*lines, "", *_wrap(f"`lookahead {names[0]} --help` says what it takes.")])


def _about_models() -> list[str]:
    *most, last = models()
    return _wrap(_ABOUT_MODELS.format(names=f"{', '.join(most)} and {last}"))


def _choices(configuration: str) -> Iterator[str]:
    """The groups that can be chosen as a whole."""
    for group, names in choices_of(configuration).items():
        if len(names) < 2:
            continue
        if not any(names.values()):
            yield from [f"{group}={'|'.join(names)}", ""]
            continue
        yield f"{group}=NAME"
        width = max(map(len, names)) + 2
        for name, comment in names.items():
            yield from _wrap(comment, f"  {name:{width}}", " " * (width + 2))
        yield ""


def _options(names: Iterable[str]) -> Iterator[str]:
    width = max(len(f"{option.name} {option.value}") for option in OPTIONS.values()) + 2
    for option in map(OPTIONS.__getitem__, names):
        same = "" if option.is_ranks else f"; {option.settings[0]}="
        yield from _wrap(f"{option.meaning}{same}", f"  {f'{option.name} {option.value}':{width}}", " " * (width + 2))


def _settings(configuration: str) -> Iterator[str]:
    yield "Settings, with their defaults:"
    group = method = None
    for setting in settings_of(configuration):
        if (setting.group, setting.method) != (group, method):
            group, method = setting.group, setting.method
            yield ""
            if method:
                yield f"  of decode={method}:"
        yield from _setting(setting)


def _setting(setting: Setting) -> Iterator[str]:
    kind = "|".join(setting.values) or _KINDS.get(setting.kind, setting.kind)
    yield f"  {setting.key}={setting.default}   ({kind})"
    yield from _wrap(setting.meaning, " " * 6, " " * 6)


def _wrap(text: str, first: str = "", later: str = "") -> list[str]:
    width = min(100, max(50, shutil.get_terminal_size().columns))
    wrapper = textwrap.TextWrapper(width, first, later, break_on_hyphens=False, break_long_words=False)
    return wrapper.wrap(text) or [first.rstrip()]
