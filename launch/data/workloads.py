"""The benchmark's prompts: well-known data sets from JSONL files given by path, and a small workload of our own.

A data set is read as it is published or in a plain form. Only the first entry of a list is used: the first turn of a
conversation, the first of several tests or answers. Prompts are the usual ones for base models, which have not been
taught to follow instructions. Knows nothing of tokens: the caller cuts a prompt to the model's context."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from string import Formatter
from typing import Any

from launch.data.prompts import JSONLine, json_lines

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


# The lines of any data set may instead be {"id", "category", "prompt" or "turns", "reference"}.
PLAIN_TEMPLATES = ("{prompt}", "{turns}")


@dataclass(frozen=True)
class DataSet:
    """How to read one data set.

    title: its name, authors and the publisher's file. templates: how a prompt is made of the keys of a line; the first
    template whose keys are all there is used. reference: the key of an answer by a person. id: the key of a problem's
    name.
    """

    title: str
    templates: tuple[str, ...]
    reference: str = "reference"
    id: str = "id"

    def template(self, record: dict[str, Any]) -> str | None:
        """The template for this line, published or plain; None if none fits."""
        for template in (*self.templates, *PLAIN_TEMPLATES):
            if all(key in record for key in template_keys(template)):
                return template
        return None

    def expected_keys(self) -> str:
        """The keys that a line must have, for error messages."""
        templates = dict.fromkeys((*self.templates, *PLAIN_TEMPLATES))
        return ", or ".join(" and ".join(template_keys(template)) for template in templates)


def template_keys(template: str) -> list[str]:
    return [key for _, key, _, _ in Formatter().parse(template) if key is not None]


def first(value: Any) -> Any:
    """The first entry of a list, or of nested lists; None for an empty list. Any other value is returned as it is."""
    while isinstance(value, list):
        value = value[0] if value else None
    return value


DATA_SETS = {
    "own": DataSet("the project's own (launch/data/own_workload.jsonl)", PLAIN_TEMPLATES),
    "humaneval": DataSet(
        "HumanEval (Chen et al., 2021): HumanEval.jsonl of openai/human-eval",
        ("{prompt}",),
        reference="canonical_solution",
        id="task_id",
    ),
    # A docstring with the task and one test: the prompt of InCoder (Fried et al., 2022). The sanitized part of the data
    # set has its task under "prompt".
    "mbpp": DataSet(
        "MBPP (Austin et al., 2021): mbpp.jsonl of google-research",
        ('"""\n{text}\n{test_list}\n"""\n', '"""\n{prompt}\n{test_list}\n"""\n'),
        reference="code",
        id="task_id",
    ),
    "gsm8k": DataSet(
        "GSM8K (Cobbe et al., 2021): test.jsonl of openai/grade-school-math",
        ("Question: {question}\nAnswer:",),
        reference="answer",
    ),
    "mt_bench": DataSet(
        "MT-Bench (Zheng et al., 2023): question.jsonl of lm-sys/FastChat", ("{turns}",), id="question_id"
    ),
    "spec_bench": DataSet(
        "Spec-Bench (Xia et al., 2024): question.jsonl of hemingkx/Spec-Bench", ("{turns}",), id="question_id"
    ),
    "classeval": DataSet(
        "ClassEval (Du et al., 2023): ClassEval_data.json of FudanSELab/ClassEval, as JSONL",
        ("{skeleton}",),
        reference="solution_code",
        id="task_id",
    ),
    # The prompts of HELM (Liang et al., 2022), with as many sentences as the references of each data set usually have.
    "cnn_dailymail": DataSet(
        "CNN/DailyMail 3.0.0 (See et al., 2017), as JSONL",
        ("###\nArticle: {article}\n\nSummarize the above article in 3 sentences.\n",),
        reference="highlights",
    ),
    "xsum": DataSet(
        "XSum (Narayan et al., 2018), as JSONL",
        ("###\nArticle: {document}\n\nSummarize the above article in 1 sentence.\n",),
        reference="summary",
    ),
}
