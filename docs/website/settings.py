"""The tables of settings in the configuration reference, from launch/config/reference.py."""

from __future__ import annotations

import re
from collections.abc import Iterable

from launch.config.reference import PROGRAMS, Setting, choices_of, settings_of

# In this order, each group stands once, with the settings that all commands give it.
TITLES = {
    "model": "The model",
    "draft": "A model that drafts",
    "second": "A model to compare with",
    "decode": "Decoding methods",
    "sampling": "Sampling",
    "parallel": "Ranks",
    "scheduler": "Steps of many requests",
    "attention": "Attention",
    "limits": "What a request may ask for",
    "server": "The server",
    "supervisor": "The supervisor of ranks",
    "ray": "Ray",
    "workload": "Workloads",
    "grammar": "Grammars",
}
COMMANDS = {
    "generate": "`lookahead generate`",
    "chat": "`lookahead chat`",
    "chat_remote": "`lookahead chat url=...`",
    "serve": "`lookahead serve`",
    "bench": "`lookahead bench`",
    "tune": "`lookahead tune`",
    "index": "`lookahead index`",
    "cache": "`lookahead cache`",
    "doctor": "`lookahead doctor`",
    "ray_generate": "`lookahead ray generate`",
    "ray_serve": "`lookahead ray serve`",
}


# How types are called by those who write no Python.
KINDS = {
    "str": "text",
    "int | str": "whole number or text",
    "int": "whole number",
    "float": "number",
    "list[str]": "list of texts",
    "list[int]": "list of numbers",
    "list[list[int]]": "list of lists of numbers",
    "dict[int, float]": "numbers by token id",
}


def all_settings() -> str:
    """Tables of all settings: those of each command alone, then those of each group."""
    of = {program: settings_of(program) for program in PROGRAMS}
    grouped = {
        group: _unique(one for found in of.values() for one in found if _group(one) == group) for group in TITLES
    }
    parts = ["## Settings of each command", ""]
    for program, found in of.items():
        parts += [f"### {COMMANDS[program]}", "", *_command(program, found), ""]
    for group, title in TITLES.items():
        parts += [f"## {title}", "", *_choices(group), *_group_tables(group, grouped[group]), ""]
    return "\n".join(parts)


def _group(setting: Setting) -> str:
    return setting.group or ("decode" if setting.key == "decode" else "")


def _unique(settings: Iterable[Setting]) -> list[Setting]:
    return list({(one.key, one.method): one for one in settings}.values())


def _command(program: str, settings: list[Setting]) -> list[str]:
    """The settings that are in no group, and the groups that the command has."""
    plain = [one for one in settings if not _group(one)]
    groups = list(dict.fromkeys(group for one in settings if (group := _group(one))))
    links = ", ".join(f"[`{group}`](#{_anchor(TITLES[group])})" for group in groups)
    return [*_table(plain), *([f"Groups: {links}.", ""] if links else [])]


def _anchor(title: str) -> str:
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


def _choices(group: str) -> list[str]:
    """What `GROUP=NAME` chooses from, if there is more than one file."""
    found = next((choices[group] for program in PROGRAMS if group in (choices := choices_of(program))), {})
    told = {name: comment for name, comment in found.items() if comment}
    if len(told) < 2:
        return []
    return ["| choice | |", "|---|---|", *(f"| `{group}={name}` | {_cell(told[name])} |" for name in told), ""]


def _group_tables(group: str, settings: list[Setting]) -> list[str]:
    if group != "decode":
        return _table(settings)
    parts = _table([one for one in settings if one.method is None])
    for method in dict.fromkeys(one.method for one in settings if one.method):
        parts += [f"### `decode={method}`", "", *_table([one for one in settings if one.method == method]), ""]
    return parts


def _table(settings: list[Setting]) -> list[str]:
    if not settings:
        return []
    head = ["| setting | type | default | meaning |", "|---|---|---|---|"]
    return ['<div class="settings" markdown>', "", *head, *map(_row, settings), "", "</div>", ""]


def _row(setting: Setting) -> str:
    kind = " \\| ".join(f"`{value}`" for value in setting.values) if setting.values else KINDS[setting.kind]
    default = f"`{setting.default}`" if setting.default else "must be given"
    return f"| `{setting.key}` | {kind} | {default} | {_meaning(setting)} |"


def _meaning(setting: Setting) -> str:
    """The meaning, with a line for each value that it explains."""
    text = _cell(setting.meaning)
    for value in setting.values:
        text = re.sub(rf"(?<=[.;:]) {value}: ", f"<br>`{value}`: ", text)
    return text


def _cell(text: str) -> str:
    return (
        text.replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*").replace("_", "\\_")
        if "`" not in text
        else text
    )
