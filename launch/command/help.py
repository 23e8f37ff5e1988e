"""The help texts of `lookahead`: all commands, or one command with every setting, its values, default and meaning."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterator

from launch.command.programs import PROGRAMS, models
from launch.program.reference import Setting, choices_of, settings_of

# What the types of Python are called.
_KINDS = {
    "str": "text",
    "int": "whole number",
    "float": "number",
    "list[str]": "[text,...]",
    "list[int]": "[number,...]",
}
_INTRODUCTION = "Faster text from an ordinary Hugging Face checkpoint, by lookahead decoding, on one device or several."
_MODEL = (
    "MODEL is a hub id (Qwen/Qwen3-0.6B), a folder, a GGUF file, or one of {names}. --ranks N runs N ranks on this "
    "machine, or reserves them on a Ray cluster."
)


def overview() -> str:
    """What `lookahead --help` shows."""
    lines = ["usage: lookahead COMMAND [MODEL] [--ranks N] [KEY=VALUE ...]", "       lookahead --version", ""]
    lines += [*_wrap(_INTRODUCTION), ""]
    for name, summary in _summaries().items():
        lines += _wrap(summary, f"  {name:10}", " " * 12)
    lines += ["", *_about_models(), "", *_wrap("`lookahead COMMAND --help` lists the settings of a command.")]
    return "\n".join(lines)


def _summaries() -> dict[str, str]:
    """Returns what each command does. Those of two words share a line."""
    found: dict[str, str] = {}
    for name, program in PROGRAMS.items():
        first, _, task = name.partition(" ")
        found[first] = found.get(first, program.summary) + (f" [{first} {task}]" if task else "")
    return found


def describe(name: str) -> str:
    """What `lookahead COMMAND --help` shows."""
    program = PROGRAMS[name]
    words = ["usage: lookahead", name, *(["[MODEL]"] if program.takes_model else [])]
    words += ["[--ranks N]"] if program.ranks is not None else []
    words += [f"[{'|'.join(option for option in program.flags)}]"] if program.flags else []
    lines = [" ".join([*words, "[KEY=VALUE ...]" if program.configuration else ""]).rstrip(), ""]
    lines += _wrap(program.summary)
    for paragraph in program.description:
        lines += ["", *_wrap(paragraph)]
    lines += ["", "Examples:", *(f"  lookahead {name} {example}".rstrip() for example in program.examples)]
    lines += ["", *_about_models()] if program.takes_model else []
    if program.configuration:
        lines += ["", *_choices(program.configuration), *_settings(program.configuration)]
    return "\n".join(lines)


def _about_models() -> list[str]:
    *most, last = models()
    return _wrap(_MODEL.format(names=f"{', '.join(most)} and {last}"))


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
