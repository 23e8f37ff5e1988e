"""The benchmark's prompts: well-known data sets from JSONL files given by path, and a small workload of our own.

A data set is read as it is published or in a plain form (launch/prompts/data_sets.py). A conversation gives its first
turn. Knows nothing of tokens: whoever decodes a prompt cuts it to the model's context.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from launch.prompts.data_sets import DATA_SETS, DataSet, first, template_keys
from launch.prompts.jsonl import JSONLine, json_lines

OWN = Path(__file__).with_name("own_workload.jsonl")


@dataclass
class WorkloadSettings:
    """Which prompts to take.

    name: one of DATA_SETS. path: its JSONL file; `own` needs none. limit: the number of problems taken from the file's
    beginning; None takes all. max_new_tokens: the length of each text.
    """

    name: str = "own"
    path: str | None = None
    limit: int | None = None
    max_new_tokens: int = 128


@dataclass(frozen=True)
class Problem:
    """One prompt. reference: what a person wrote as an answer, if the data set has it. where: file and line."""

    id: str
    category: str
    prompt: str
    reference: str | None
    where: str


def load(settings: WorkloadSettings) -> list[Problem]:
    """The problems of a workload, at least one.

    Raises ValueError naming the setting, or the file and line, that cannot be used.
    """
    if settings.name not in DATA_SETS:
        raise ValueError(f"workload.name={settings.name} is unknown; it is one of {', '.join(DATA_SETS)}")
    for key in ("limit", "max_new_tokens"):
        if (value := getattr(settings, key)) is not None and value < 1:
            raise ValueError(f"workload.{key}={value} must be at least 1")
    path = _path(settings)
    problems: dict[str, Problem] = {}
    for problem in islice(_problems(path, settings.name), settings.limit):
        if earlier := problems.get(problem.id):
            raise ValueError(f"{problem.where} has the id {problem.id!r}, as {earlier.where} has; ids must differ")
        problems[problem.id] = problem
    if not problems:
        raise ValueError(f"workload.path={path} holds no problems; it must have one JSON object a line")
    return list(problems.values())


def _path(settings: WorkloadSettings) -> str:
    if settings.path:
        return os.path.expanduser(settings.path)
    if settings.name == "own":
        return str(OWN)
    data_set = DATA_SETS[settings.name]
    raise ValueError(
        f"workload={settings.name} needs workload.path=FILE: {data_set.title}, which does not come with this project; "
        f"a line needs {data_set.expected_keys()} ({data_set.id} and {data_set.reference} are read as well)"
    )


def _problems(path: str, name: str) -> Iterator[Problem]:
    for line in json_lines(path, "workload.path"):
        yield _problem(line, name)


def _problem(line: JSONLine, name: str) -> Problem:
    data_set, record = DATA_SETS[name], line.value
    if not isinstance(record, dict):
        raise ValueError(f'{line.where} is not a JSON object; a line looks like {{"id": "a", "prompt": "..."}}')
    ids = (record.get(data_set.id), record.get("id"), line.number - 1)
    return Problem(
        id=str(next(value for value in ids if value is not None)),
        category=str(record.get("category") or name),
        prompt=_prompt(record, data_set, name, line.where),
        reference=_reference(record, data_set, line.where),
        where=line.where,
    )


def _prompt(record: dict[str, Any], data_set: DataSet, name: str, where: str) -> str:
    template = data_set.template(record)
    if template is None:
        keys = ", ".join(record) or "no keys"
        raise ValueError(f"{where} has {keys}; a line of {name} needs {data_set.expected_keys()}")
    return template.format_map({key: _text(record[key], key, where) for key in template_keys(template)})


def _text(value: Any, key: str, where: str) -> str:
    text = first(value)
    if not isinstance(text, str) or not text.strip():
        raise ValueError(f'{where} has no text under "{key}"; leave the line out if it has no prompt')
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f'{where} has a lone surrogate under "{key}": character {error.start} of its text') from None
    return text


def _reference(record: dict[str, Any], data_set: DataSet, where: str) -> str | None:
    key = data_set.reference if data_set.reference in record else "reference"
    text = first(record.get(key))
    if text is not None and not isinstance(text, str):
        raise ValueError(f'{where} has something else than text under "{key}"; leave the key out if there is none')
    return text
