"""Reads a line of `lookahead`: which command it names, with which settings and on how many ranks.

    lookahead serve Qwen/Qwen3-0.6B --ranks 2 --port 9000 server.max_waiting=16
    lookahead COMMAND [MODEL] [--ranks N] [OPTIONS] [KEY=VALUE ...]

Settings are passed on as they are; Hydra reads their values. A key that the command does not have is found here, since
that takes no time, and the nearest one is named.
"""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import NoReturn

from launch.cli.programs import OPTIONS, PROGRAMS, Option, Program, models, tasks_of
from launch.config.reference import RENAMED, choices_of, nearest, settings_of

_SETTING = re.compile(r"(?P<mark>\+{0,2}|~)(?P<key>[A-Za-z_][\w.@/:-]*)(?P<equals>=)?(?P<value>.*)", re.DOTALL)
# Values in which Hydra's grammar has a meaning of its own; they are not compared with names.
_NO_NAME = re.compile(r"[^\w.-]")


class LineError(ValueError):
    """A line that cannot be understood; the message is for the user."""


@dataclass(frozen=True)
class Line:
    """What a line asks for. ranks: None if it does not say. asks_for_help: whether it asks for the command's help.

    asks_for_all: whether that has all settings.
    """

    name: str
    program: Program
    arguments: tuple[str, ...]
    ranks: int | None = None
    asks_for_help: bool = False
    asks_for_all: bool = False


def read_line(words: Sequence[str]) -> Line:
    """words: the arguments of `lookahead`, the first of which names a command. Raises LineError."""
    name, rest = _name(words)
    program = PROGRAMS[name]
    parser = _Parser(f"lookahead {name}", program)
    found = parser.parse_intermixed_args(rest)
    if found.help or found.help_all:
        return Line(name, program, (), None, True, found.help_all)
    named = [word for word in found.words if not _is_setting(word)]
    settings = [word for word in found.words if _is_setting(word)]
    num_ranks, given = found.ranks, list[str]()
    for option in map(OPTIONS.__getitem__, program.options):
        if values := getattr(found, _attribute(option.name)):
            given += _option_settings(option, values, settings)
            num_ranks = _ranks_of(option, values, num_ranks) if option.is_ranks else num_ranks
    settings = [*given, *settings]
    _check_settings(name, program, settings)
    ranks = _ranks_arguments(name, program, num_ranks, settings)
    flags = [program.flags[option] for option in program.flags if getattr(found, _attribute(option))]
    task = [f"task={name.split()[1]}"] if " " in name else []
    arguments = [*task, *dict.fromkeys(flags), *_model(program, named, settings), *ranks, *settings]
    return Line(name, program, tuple(arguments), num_ranks)


def _option_settings(option: Option, values: list[str], settings: Sequence[str]) -> list[str]:
    """The settings that an option stands for. settings: those of the line. Raises LineError."""
    keys = {setting.partition("=")[0] for setting in settings}
    if twice := [key for key in option.settings if key in keys]:
        raise LineError(f"{option.name} and {twice[0]}= say the same: leave one of them out")
    if len(values) > 1 and not option.takes_several:
        raise LineError(f"{option.name} is given {len(values)} times: leave all but one of them out")
    if option.is_ranks:
        return ["parallel=tp"] if int(values[0]) > 1 else []
    if not option.takes_several:
        return [f"{option.settings[0]}={values[0]}"]
    *single, several = option.settings
    quoted = [_quoted(value) for value in values]
    left = quoted[len(single) :]
    made = [f"{key}={value}" for key, value in zip(single, quoted, strict=False)]
    return [*made, f"{several}=[{','.join(left)}]"] if left else made


def _ranks_of(option: Option, values: list[str], ranks: int | None) -> int | None:
    """The number of ranks that an option asks for. ranks: what --ranks says. Raises LineError."""
    wanted = int(values[0])
    if ranks is not None and ranks != wanted:
        raise LineError(f"{option.name}={wanted} needs as many ranks, and --ranks says {ranks}: leave out --ranks")
    return wanted if wanted > 1 else ranks


def _quoted(value: str) -> str:
    """A value that Hydra takes as it is."""
    return "'" + value.replace("'", "\\'") + "'"


def model_settings(model: str, is_quoted: bool = False) -> list[str]:
    """The settings that choose a model by its name, folder, GGUF file or hub id. Raises LineError.

    is_quoted: whether Hydra reads the value by its grammar, so that it must be quoted.
    """
    if model in models():
        return [f"model={model}"]
    if not os.path.exists(model) and "/" not in model and (near := get_close_matches(model, models(), 1, 0.75)):
        raise LineError(
            f"there is no model {model!r}; did you mean {near[0]}? (a hub model of that name: model.path={model})"
        )
    path = _quoted(model) if is_quoted else model
    return ["model=checkpoint", f"model.path={path}"]


class _Parser(argparse.ArgumentParser):
    """Raises LineError instead of ending the process."""

    def __init__(self, prog: str, program: Program):
        super().__init__(prog, add_help=False, allow_abbrev=False)
        self.program = program
        self.add_argument("words", nargs="*")
        self.add_argument("-h", "--help", action="store_true")
        self.add_argument("--help-all", action="store_true")
        self.add_argument("--ranks", type=_number_of_ranks)
        for option in program.flags:
            self.add_argument(option, action="store_true", dest=_attribute(option))
        for option in map(OPTIONS.__getitem__, program.options):
            kind = _number_of_ranks if option.is_ranks else str
            self.add_argument(option.name, action="append", dest=_attribute(option.name), type=kind)

    def error(self, message: str) -> NoReturn:
        prefix = "unrecognized arguments: "
        if message.startswith(prefix):
            message = self._describe_unknown(message.removeprefix(prefix).split()[0])
        raise LineError(f"{message} ({self.prog} --help)")

    def _describe_unknown(self, word: str) -> str:
        """What is said of an option that does not exist: settings are written without dashes."""
        option, _, value = word.partition("=")
        key = option.lstrip("-").replace("-", "_")
        options = ["--help", "--help-all", "--ranks", *self.program.flags, *self.program.options]
        if near := get_close_matches(option, options, 1, 0.75):
            return f"there is no option {option}; did you mean {near[0]}?"
        known = _keys(self.program)
        fits = [name for name in known if name.rpartition(".")[2] == key] or get_close_matches(key, known, 1)
        written = f"{fits[0]}={value or 'VALUE'}" if fits else "KEY=VALUE"
        return f"there is no option {option}; settings are written without dashes: {written}"


def _name(words: Sequence[str]) -> tuple[str, Sequence[str]]:
    """The command's name, of one word or two, and the words after it. Raises LineError."""
    first = {name.split()[0] for name in PROGRAMS}
    if words[0] not in first:
        raise LineError(f"there is no command {words[0]!r}{nearest(words[0], first)} (lookahead --help)")
    if words[0] in PROGRAMS:
        return words[0], words[1:]
    tasks = tasks_of(words[0])
    task = words[1] if len(words) > 1 else ""
    if task not in tasks:
        message = f"there is no {words[0]} {task!r}{nearest(task, tasks)}" if task else f"{words[0]} what?"
        raise LineError(f"{message} Use lookahead {words[0]} {'|'.join(tasks)}")
    return f"{words[0]} {task}", words[2:]


def _number_of_ranks(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a number of ranks from 1 on")
    return int(text)


def _attribute(option: str) -> str:
    return f"flag_{option.strip('-')}"


def _is_setting(word: str) -> bool:
    found = _SETTING.fullmatch(word)
    return bool(found and (found["equals"] or found["mark"] == "~"))


def _ranks_arguments(name: str, program: Program, ranks: int | None, settings: Sequence[str]) -> list[str]:
    """What --ranks stands for, without what the line sets itself."""
    if ranks is None:
        return []
    if program.ranks is None:
        raise LineError(f"lookahead {name} runs on one rank: leave out --ranks")
    if ranks == 1 and program.module == "serve":
        return []  # this process; nothing to supervise
    keys = {setting.partition("=")[0] for setting in settings}
    if "parallel.ranks" in keys:
        raise LineError("--ranks and parallel.ranks= say the same: leave one of them out")
    arguments = [argument.format(ranks=ranks) for argument in program.ranks]
    return [argument for argument in arguments if argument.partition("=")[0] not in keys]


def _model(program: Program, named: Sequence[str], settings: Iterable[str]) -> list[str]:
    """The settings for a model that is named without a key. Raises LineError."""
    if not named:
        return []
    if not program.takes_model:
        raise LineError(f"{named[0]!r} is not of the form KEY=VALUE, and this command takes no model")
    if len(named) > 1:
        raise LineError(f"{named[1]!r} is not of the form KEY=VALUE, and {named[0]!r} names the model already")
    if twice := [setting for setting in settings if setting.partition("=")[0] in ("model", "model.path", "url")]:
        raise LineError(f"{named[0]!r} names the model, and so does {twice[0]}: leave one of them out")
    return model_settings(named[0], is_quoted=program.configuration == "bench")


def _check_settings(name: str, program: Program, settings: Sequence[str]) -> None:
    """Raises LineError for a key that the command does not have, and for a name that is nearly one of its values."""
    if program.configuration is None:
        return
    is_remote = any(setting.startswith("url=") for setting in settings)
    configuration = "chat_remote" if name == "chat" and is_remote else program.configuration
    known = _keys(program, configuration)
    open_keys = tuple(f"{one.key}." for one in settings_of(configuration) if one.kind.startswith("dict"))
    for setting in settings:
        found = _SETTING.fullmatch(setting)
        assert found
        key, value = found["key"].partition("@")[0], found["value"]
        key = RENAMED.get(key, key)
        if found["mark"] or key == "hydra" or key.startswith(("hydra.", "hydra/", *open_keys)):
            continue
        if key not in known:
            near = nearest(key, known) or _by_last_part(key, known)
            raise LineError(f"lookahead {name} has no setting {key!r}{near} (lookahead {name} --help)")
        if (values := known[key]) and value not in values and not _NO_NAME.search(value):
            near = get_close_matches(value, values, 1)
            if near and near[0] not in ("true", "false"):
                raise LineError(f"{key} cannot be {value!r}; did you mean {near[0]}? It is one of {', '.join(values)}")


def _keys(program: Program, configuration: str | None = None) -> dict[str, tuple[str, ...]]:
    """Returns the values that are known of each key, groups included."""
    configuration = configuration or program.configuration
    if configuration is None:
        return {}
    known = {setting.key: setting.values for setting in settings_of(configuration)}
    return known | {group: tuple(names) for group, names in choices_of(configuration).items()}


def _by_last_part(key: str, known: Iterable[str]) -> str:
    """Suggests the whole key for one that was given without its group, such as port for server.port."""
    fits = [name for name in known if name.rpartition(".")[2] == key.rpartition(".")[2]]
    return f"; did you mean {fits[0]}?" if fits else ""
