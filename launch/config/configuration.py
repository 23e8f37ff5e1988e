"""Turns the command line into typed settings: Hydra composes the files of conf/ with the overrides.

`prompt=` and other free texts are taken literally, so that users need not quote them for Hydra's grammar. Imports no
model, so that a command without one starts at once.
"""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import reduce
from typing import Any, TypeVar

from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.errors import HydraException, OverrideParseException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, KeyValidationError, OmegaConfBaseException

from launch.config import resources
from launch.config.reference import RENAMED, choices_of, nearest
from launch.config.resources import conf, resource

log = logging.getLogger("lookahead")

# Keys whose values are taken literally: neither Hydra's grammar nor OmegaConf's interpolation applies to them.
FREE_TEXT = (
    "prompt",
    "prompt_file",
    "prompts",
    "messages",
    "system",
    "url",
    "api_key",
    "model.path",
    "draft.path",
    "second.path",
    "index",
    "corpus",
    "grammar.text",
    "grammar.file",
)

# Keys of dictionaries that begin empty. Hydra adds entries to them only if `++` stands before the key.
OPEN = ("sampling.logit_bias",)

# What OmegaConf says of a value that does not have a setting's type.
_NO_NUMBER = re.compile(
    r"Value (?P<value>'.*') of type '\w+' could not be converted to (?P<kind>Integer|Float)", re.DOTALL
)
_NO_BOOLEAN = re.compile(r"Value (?P<value>'.*') is not a valid bool \(type \w+\)", re.DOTALL)
_NO_MEMBER = re.compile(r"Invalid value (?P<value>'.*'), expected one of \[(?P<names>.*)\]", re.DOTALL)
_NUMBERS = {"Integer": "whole number", "Float": "number"}

Settings = TypeVar("Settings")


class UsageError(ValueError):
    """A command line that cannot be understood."""


def register(name: str, schema: type, **groups: Any) -> None:
    """Tells Hydra which dataclasses are the types of a program's config and of its groups.

    A program that runs a model registers itself by launch.config.engine_settings.
    """
    store = ConfigStore.instance()
    OmegaConf.register_new_resolver("shipped", lambda path: str(resource(path)), replace=True)
    store.store(name=f"{name}_schema", node=schema)
    for group, node in groups.items():
        store.store(group=group, name="schema", node=node)


def load(name: str, schema: type[Settings], arguments: Sequence[str]) -> Settings:
    """Returns the settings of conf/NAME.yaml with the overrides `key=value`. Raises UsageError with one message."""
    overrides, texts = _split(arguments)
    with usage_errors():
        with initialize_config_dir(config_dir=str(conf()), version_base="1.3"):
            config = compose(config_name=name, overrides=overrides)
        for key in texts:
            OmegaConf.update(config, key, "")  # refuses a key that this program does not have
        settings = typed(config, schema)
    for key, text in texts.items():
        *owners, name = key.split(".")
        setattr(reduce(getattr, owners, settings), name, text)
    server = getattr(settings, "server", None)
    if server is not None and not server.model_names and (named := _model_of(arguments)):
        server.model_names = [named]
    return settings


def _model_of(arguments: Sequence[str]) -> str | None:
    """How the command line names its model; None if it does not."""
    given = dict(argument.split("=", 1) for argument in arguments if "=" in argument)
    name = given.get("model.path", given.get("model"))
    return None if name == "checkpoint" else name


def typed(config: DictConfig, schema: type[Settings]) -> Settings:
    """Converts a composed config to its dataclass. A model that comes in a package is downloaded if it is not there.

    Raises ValueError if it cannot be downloaded, UsageError if a required setting is missing, OmegaConfBaseException
    for a value of the wrong type.
    """
    if missing := sorted(map(str, OmegaConf.missing_keys(config))):
        raise UsageError(f"{' and '.join(missing)} must be given, as key=value; --help-all lists the settings")
    settings = OmegaConf.to_object(config)
    assert isinstance(settings, schema)
    model = getattr(settings, "model", None)
    if model is not None:
        model.path = resources.resolve(model.path)
    return settings


@contextmanager
def usage_errors() -> Iterator[None]:
    """Turns an error that Hydra or OmegaConf raises in the body into a UsageError with one message."""
    try:
        yield
    except (HydraException, OmegaConfBaseException) as error:
        raise UsageError(_readable(error)) from error


def describe(name: str) -> str:
    """Returns the choices of each group that the program has, and all settings with their defaults as YAML."""
    with initialize_config_dir(config_dir=str(conf()), version_base="1.3"):
        config = compose(config_name=name, overrides=["hydra/job_logging=none", "hydra/hydra_logging=none"])
    choices = [f"  {group}={'|'.join(sorted(names))}" for group, names in sorted(choices_of(name).items())]
    return "\n".join(["Groups:", *choices, "", "Settings and their defaults:", OmegaConf.to_yaml(config)])


def asks_for_help(arguments: Sequence[str]) -> bool:
    return not {"-h", "--help", "--help-all"}.isdisjoint(arguments)


def print_help(name: str, usage: str | None) -> None:
    """Prints what a program does, and its groups and settings. usage: its docstring."""
    try:
        print(f"{(usage or '').strip()}\n\n{describe(name)}", flush=True)
    except BrokenPipeError:  # its reader, such as head, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _split(arguments: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Returns the overrides for Hydra, and the literal values of the keys in FREE_TEXT."""
    overrides: list[str] = []
    texts: dict[str, str] = {}
    for argument in arguments:
        key, equals, value = argument.partition("=")
        if not equals:
            raise UsageError(f"{argument!r} is not of the form key=value; --help-all lists the settings")
        if new_key := RENAMED.get(key):
            log.warning("warning: %s is now called %s; the old name works for one more release", key, new_key)
            key, argument = new_key, f"{new_key}={value}"
        if key in FREE_TEXT:
            texts[key] = value
        else:
            overrides.append(f"++{argument}" if key in OPEN else argument)
    return overrides, texts


def _readable(error: BaseException) -> str:
    """Returns what a Hydra or OmegaConf error says is wrong, and with which setting, in one line."""
    if isinstance(error, OverrideParseException):
        return (
            f"{(error.override or '').removeprefix('++')!r} cannot be parsed; write lists as [a,b] and quote special "
            "characters, as in key='a=b'"
        )
    cause: Any = error
    while cause.__cause__ is not None and isinstance(cause.__cause__, HydraException | OmegaConfBaseException):
        cause = cause.__cause__
    lines = [line.strip() for line in str(cause).splitlines() if line.strip()]
    if isinstance(cause, HydraException):
        return _unknown_choice(lines) or "; ".join(lines)
    gist = "; ".join(line for line in lines if not line.startswith(("full_key: ", "object_type=", "reference_type=")))
    if isinstance(cause, KeyValidationError):
        return f"{cause.full_key}: {cause.key!r} is not a whole number; write entries as in KEY={{1: -100, 5: 2.5}}"
    if isinstance(cause, ConfigKeyError | ConfigAttributeError):
        return _unknown_key(cause)
    if found := _NO_NUMBER.fullmatch(gist):
        return f"{cause.full_key} cannot be {found['value']}: it must be a {_NUMBERS[found['kind']]}"
    if found := _NO_BOOLEAN.fullmatch(gist):
        return f"{cause.full_key} cannot be {found['value']}: it must be true or false"
    if found := _NO_MEMBER.fullmatch(gist):
        return f"{cause.full_key} cannot be {found['value']}; it is one of {found['names']}"
    if gist.endswith("is not a ListConfig, list or tuple."):
        return f"{cause.full_key} must be a list, as in {cause.full_key}=[a,b]"
    return f"{cause.full_key}: {gist}"


def _unknown_choice(lines: list[str]) -> str | None:
    """Returns the message for a name that a group of conf/ does not have; None if Hydra's error is another one."""
    if "Config search path:" not in lines:
        return None
    group, _, name = lines[0].split("'")[-2].rpartition("/")
    choices = [line for line in lines[2 : lines.index("Config search path:")] if line != "schema"]
    return f"{group} cannot be {name!r}; it is one of {', '.join(choices)}"


def _unknown_key(error: Any) -> str:
    """Returns the message for a setting that does not exist, with the nearest name in its group."""
    suggestion = nearest(error.key, error.parent_node, error.full_key.removesuffix(error.key))
    owner = f"decode={error.object_type.method} has" if error.full_key.startswith("decode.") else "there is"
    return f"{owner} no setting {error.full_key!r}{suggestion} (--help-all lists the settings)"
