"""Says what every setting of a command is: its key, type, values, default and meaning.

All of it is read from the sources, without importing them, so that a help text needs no PyTorch and nothing can go
stale: fields and defaults come from the dataclasses, meanings from their docstrings, decoding methods from their
registry, other defaults and choices from conf/.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from launch.config.resources import PACKAGE, conf

ROOT = PACKAGE.parent  # of the packages lp, parallel and launch

# The class that has the settings of each command. The names are those of the files in conf/.
PROGRAMS = {
    "generate": ("launch.generate", "GenerateSettings"),
    "chat": ("launch.chat", "ChatSettings"),
    "chat_remote": ("launch.chat", "RemoteChatSettings"),
    "serve": ("launch.serve", "ServeSettings"),
    "bench": ("launch.sweep.settings", "BenchSettings"),
    "tune": ("launch.tune", "TuneSettings"),
    "index": ("launch.index", "IndexSettings"),
    "cache": ("launch.cache", "CacheSettings"),
    "doctor": ("launch.doctor", "DoctorSettings"),
    "ray_generate": ("launch.cluster.program_settings", "RayGenerateSettings"),
    "ray_serve": ("launch.cluster.program_settings", "RayServeSettings"),
}
# The names of settings by the names that they had until the last release, under which they are still accepted.
RENAMED = {
    "supervisor.answer_within_s": "supervisor.answer_timeout_s",
    "supervisor.hang_s": "supervisor.hang_timeout_s",
    "supervisor.start_within_s": "supervisor.start_timeout_s",
}
_METHODS = "lp.methods.registry"
_BOOLEANS = ("true", "false")


@dataclass(frozen=True)
class Setting:
    """One setting of a command.

    key: as on the command line, such as parallel.ranks. kind: its type. values: the values it may have; empty if they
    are not a few names. default: as on the command line; empty if it must be given. meaning: plain text. owner: the
    class that has the setting, as module:Class. method: the decoding method that it belongs to; None is any.
    """

    key: str
    kind: str
    values: tuple[str, ...]
    default: str
    meaning: str
    owner: str
    method: str | None = None

    @property
    def group(self) -> str:
        """The first part of a key of several parts; empty for a key of one part."""
        return self.key.rpartition(".")[0].partition(".")[0]


def settings_of(program: str) -> list[Setting]:
    """All settings of a command, named as its file in conf/, in the order of its dataclass. Raises KeyError."""
    found = list(_settings(*PROGRAMS[program], ""))
    defaults = dict(_flat(_own_defaults(program), ""))
    return [replace(one, default=_text(defaults[one.key])) if one.key in defaults else one for one in found]


def nearest(word: str, known: Iterable[str], prefix: str = "") -> str:
    """Suggests the known name that is most like a word, after a prefix; empty if none is like it."""
    near = get_close_matches(word, list(known), 1, 0.6)
    return f"; did you mean {prefix}{near[0]}?" if near else ""


def choices_of(program: str) -> dict[str, dict[str, str]]:
    """The groups that a command can choose from, as model=demo: for each its names, and what each is for."""
    named = [entry for entry in _read(conf() / f"{program}.yaml").get("defaults", []) if isinstance(entry, dict)]
    groups = [name for entry in named for name in entry if name == "decode" or (conf() / name).is_dir()]
    return {group: _choices(group) for group in groups}


def _choices(group: str) -> dict[str, str]:
    if group == "decode":
        return {method: _summary(node) for method, node in _methods().values()}
    return {file.stem: _comment(file) for file in sorted((conf() / group).glob("*.yaml"))}


@dataclass(frozen=True)
class _Module:
    """A module's syntax. origins: module and name of what it imports. values: its constants."""

    name: str
    classes: dict[str, ast.ClassDef]
    origins: dict[str, tuple[str, str]]
    values: dict[str, ast.expr]


@cache
def _module(name: str) -> _Module:
    path = ROOT.joinpath(*name.split("."))
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    body = ast.parse(path.read_text(encoding="utf-8")).body
    classes = {node.name: node for node in body if isinstance(node, ast.ClassDef)}
    imports = [node for node in body if isinstance(node, ast.ImportFrom) and node.module]
    origins = {alias.asname or alias.name: (str(node.module), alias.name) for node in imports for alias in node.names}
    values = {
        target.id: node.value
        for node in body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    return _Module(name, classes, origins, values)


def _find(module: str, name: str) -> tuple[_Module, ast.ClassDef] | None:
    """The class that a name means in a module of this project."""
    here = _module(module)
    if name in here.classes:
        return here, here.classes[name]
    origin = here.origins.get(name)
    if origin is None or origin[0].split(".")[0] not in ("lp", "parallel", "launch"):
        return None
    if (ROOT.joinpath(*origin[0].split(".")) / f"{origin[1]}.py").exists():
        return None  # a module
    return _find(*origin)


def _settings(module: str, name: str, prefix: str) -> Iterator[Setting]:
    """The settings of a dataclass, those of its bases and of the dataclasses in its fields included."""
    for key, (owner, node, meaning) in _fields(module, name).items():
        annotation = ast.unparse(node.annotation)
        full = f"{prefix}{key}"
        if key == "decode":
            yield from _of_methods(full, owner)
        elif (inner := _nested(owner, annotation)) is not None:
            yield from _settings(*inner, f"{full}.")
        else:
            yield _setting(full, owner, name, node, annotation, meaning)


def _fields(module: str, name: str) -> dict[str, tuple[str, ast.AnnAssign, str]]:
    """By a field's name: the module that declares it, the declaration, and its meaning."""
    found = _find(module, name)
    assert found, f"{module} has no class {name}"
    here, node = found
    fields: dict[str, tuple[str, ast.AnnAssign, str]] = {}
    for base in reversed(node.bases):
        if isinstance(base, ast.Name) and _find(here.name, base.id):
            fields |= _fields(here.name, base.id)
    own = {
        one.target.id: one for one in node.body if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name)
    }
    own = {key: one for key, one in own.items() if not ast.unparse(one.annotation).startswith("ClassVar")}
    meanings = parameters(ast.get_docstring(node) or "", [*fields, *own])
    for key, one in own.items():
        inherited = fields[key][2] if key in fields else ""
        fields[key] = (here.name, one, meanings.get(key) or inherited)
    return fields


def _nested(module: str, annotation: str) -> tuple[str, str] | None:
    """Where the dataclass of a field is, if its type is one."""
    found = _find(module, annotation) if annotation.isidentifier() else None
    if found is None or _is_enum(found[1]):
        return None
    return found[0].name, found[1].name


def _of_methods(key: str, owner: str) -> Iterator[Setting]:
    """The setting `decode`, and those of all decoding methods."""
    methods = _methods()
    names = tuple(method for method, _ in methods.values())
    meaning = "The decoding method. Each has settings of its own."
    yield Setting(key, "method", names, "auto", meaning, f"{owner}:decode")
    for name, (method, _) in methods.items():
        yield from (replace(one, method=method) for one in _settings(_METHODS, name, f"{key}."))


def _methods() -> dict[str, tuple[str, ast.ClassDef]]:
    """The registered decoding methods by their classes' names: what a user calls each, and its class."""
    known = _module(_METHODS)
    found = {name: _find(_METHODS, name) for name in (*known.classes, *known.origins)}
    return {name: (method, one[1]) for name, one in found.items() if one and (method := _method(one[1]))}


def _summary(node: ast.ClassDef) -> str:
    """The first paragraph of a class's docstring."""
    return re.sub(r"\s*\n\s*", " ", (ast.get_docstring(node) or "").partition("\n\n")[0])


def _method(node: ast.ClassDef) -> str | None:
    for one in node.body:
        if (
            isinstance(one, ast.AnnAssign)
            and ast.unparse(one.target) == "method"
            and isinstance(one.value, ast.Constant)
        ):
            return str(one.value.value)
    return None


def _setting(key: str, module: str, owner: str, node: ast.AnnAssign, annotation: str, meaning: str) -> Setting:
    kind = annotation.removesuffix(" | None")
    values: tuple[str, ...] = _BOOLEANS if kind == "bool" else ()
    found = _find(module, kind) if kind.isidentifier() else None
    if found:
        values, kind = tuple(_members(found[1])), "name"
        meaning = _with_values(meaning, ast.get_docstring(found[1]) or "", values)
    return Setting(key, kind, values, _default(module, node.value), _plain(meaning), f"{module}:{owner}")


def _with_values(meaning: str, docstring: str, values: tuple[str, ...]) -> str:
    """What a setting means, and each of its values. docstring: that of the values' class."""
    if not meaning or meaning.startswith("see "):
        return re.sub(r"\s*\n\s*", " ", docstring)
    return " ".join([meaning, *(f"{value}: {text}" for value, text in parameters(docstring, list(values)).items())])


def _plain(meaning: str) -> str:
    """A docstring's words as a user reads them: YAML's names of values, and no hints for readers of the sources."""
    meaning = re.sub(r"\s*\((?:see|default) [^)]*\)|\s+See \S+\.(?=\s|$)", "", meaning)
    for python, yaml_name in (("None", "null"), ("False", "false"), ("True", "true")):
        meaning = re.sub(rf"\b{python}\b", yaml_name, meaning)
    return meaning[:1].upper() + meaning[1:]


def _is_enum(node: ast.ClassDef) -> bool:
    return any(ast.unparse(base).endswith("Enum") for base in node.bases)


def _members(node: ast.ClassDef) -> Iterator[str]:
    for one in node.body:
        if isinstance(one, ast.Assign) and isinstance(one.value, ast.Constant):
            yield str(one.value.value)


def _default(module: str, value: ast.expr | None) -> str:
    """A default as it is written on the command line; empty if there is none."""
    match value:
        case None | ast.Name(id="MISSING"):
            return ""
        case ast.Name(id=name):
            return _default(module, _module(module).values.get(name)) or name
        case ast.Attribute(attr=member):
            return member
        case ast.Call(func=ast.Name(id="field")):
            return _factory({word.arg: word.value for word in value.keywords}["default_factory"])
    return _text(eval(compile(ast.Expression(value), module, "eval"), {"__builtins__": {}}))


def _factory(value: ast.expr) -> str:
    match value:
        case ast.Name(id="list"):
            return "[]"
        case ast.Name(id="dict"):
            return "{}"
        case ast.Lambda(body=body):
            return _text(ast.literal_eval(body))
    return ast.unparse(value)


def _text(value: Any) -> str:
    """A value as it is written on the command line."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return f"[{','.join(map(_text, value))}]"
    return str(value)


def _own_defaults(program: str) -> dict[str, Any]:
    """What conf/PROGRAM.yaml sets itself, over the dataclasses' defaults; and the group files that it chooses."""
    config = _read(conf() / f"{program}.yaml")
    chosen: dict[str, Any] = {}
    for entry in config.pop("defaults", []):
        for group, name in entry.items() if isinstance(entry, dict) else ():
            file = conf() / group / f"{name}.yaml"
            if file.exists():
                chosen[group] = {key: value for key, value in _read(file).items() if key != "defaults"}
    config.pop("hydra", None)
    return {**chosen, **config}


def _flat(values: dict[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        elif not str(value).startswith("${"):
            yield f"{prefix}{key}", value


@cache
def _comment(file: Path) -> str:
    """The comment at the head of a file."""
    lines = file.read_text(encoding="utf-8").splitlines()
    return " ".join(line.removeprefix("#").strip() for line in lines if line.startswith("#"))


def _read(file: Path) -> dict[str, Any]:
    return yaml.safe_load(file.read_text(encoding="utf-8")) or {}


def parameters(docstring: str, names: list[str]) -> dict[str, str]:
    """The meanings that a docstring gives to these names."""
    return {name: meaning for group, meaning in divide(docstring, names)[1] for name in group}


def divide(docstring: str, names: list[str]) -> tuple[str, list[tuple[list[str], str]]]:
    """A docstring without its descriptions of names, and these: the names that share one, and what it says."""
    any_name = "|".join(sorted(map(re.escape, names), key=len, reverse=True))
    if not any_name:
        return docstring, []
    entry = re.compile(rf"(?:(?<=^)|(?<=[.;]\s))((?:{any_name})(?:, (?:{any_name}))*): ")
    rest: list[str] = []
    found: list[tuple[list[str], str]] = []
    for paragraph in re.split(r"\n\s*\n", docstring):
        starts = list(entry.finditer(text := re.sub(r"\s*\n\s*", " ", paragraph.strip())))
        if not starts:
            rest.append(paragraph)
        elif before := text[: starts[0].start()].strip():
            rest.append(before)
        for start, end in zip(starts, [*starts[1:], None]):
            found.append((start.group(1).split(", "), text[start.end() : end.start() if end else None].strip()))
    return "\n\n".join(rest), found
