"""Finds the commands in the examples and documents that start this project's programs.

Knows how each kind of file writes a command, and nothing of the settings that the programs take.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from launch.cli.line import read_line

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "examples" / "deploy"
DOCUMENTS = [
    ROOT / "README.md",
    *sorted(file for file in (ROOT / "docs").rglob("*.md") if file.name != "design.md" and file.parent.name != "log"),
]

_PROGRAM = re.compile(r"(?:\S*/)?launch/(\w+)\.py")
_VARIABLE = re.compile(r"\$\{?\w+\}?")
_END_OF_ARGUMENTS = {"&&", "||", "|", ";", "&", "$@"}
# A line of the command on the path without placeholders, which are in capitals.
_LOOKAHEAD = re.compile(r"^\s*lookahead (?![^#]*(?:\b[A-Z]{3,}\b|--help|--version))(?P<words>.+)")


@dataclass(frozen=True)
class Command:
    """A command that starts launch/PROGRAM.py, written as such or as a line of `lookahead`.

    arguments: its key=value words, in which 4 stands for each variable of the shell.
    """

    file: str
    program: str
    arguments: tuple[str, ...]

    def __str__(self) -> str:
        return " ".join([f"{self.file}:", self.program, *self.arguments])


def find_commands() -> list[Command]:
    """Returns all commands of DOCUMENTS and of examples/deploy, those in its comments and its README included."""
    examples = [(file, str(file.relative_to(DEPLOY))) for file in sorted(DEPLOY.rglob("*")) if file.is_file()]
    documents = [(file, f"{file.name} of the project") for file in DOCUMENTS]
    return [command for file, name in examples + documents for command in _commands_of(file, name)]


def documents(file: Path) -> list[Any]:
    """Returns the documents of a YAML file."""
    return list(yaml.safe_load_all(file.read_text(encoding="utf-8")))


def _commands_of(file: Path, name: str) -> Iterator[Command]:
    text = file.read_text(encoding="utf-8")
    if file.suffix == ".yaml":
        comments = "\n".join(line for line in text.splitlines() if line.startswith("#"))
        texts = [comments, *_strings(documents(file))]
    elif file.name == "Dockerfile":
        texts = [shlex.join(json.loads(line.removeprefix("CMD "))) for line in text.splitlines() if line[:5] == "CMD ["]
    else:
        texts = [text]
    for found in texts:
        yield from _commands_in(found, name)


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from (text for item in value.values() for text in _strings(item))
    elif isinstance(value, list):
        yield from (text for item in value for text in _strings(item))


def _commands_in(text: str, name: str) -> Iterator[Command]:
    for line in re.sub(r"\\\n#?\s*", " ", text).splitlines():
        if match := _LOOKAHEAD.match(line):
            read = read_line([*_arguments(match["words"])])
            yield Command(name, read.program.module, read.arguments)
        elif match := _PROGRAM.search(line):
            yield Command(name, match[1], tuple(_arguments(line[match.end() :])))


def _arguments(rest: str) -> Iterator[str]:
    """Yields the words after the program, up to a comment or the next command."""
    for word in shlex.split(rest.split("`")[0], comments=True):
        if word in _END_OF_ARGUMENTS:
            return
        yield _VARIABLE.sub("4", word)
