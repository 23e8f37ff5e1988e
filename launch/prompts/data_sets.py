"""Data sets as they are published: which keys a line has, and how it becomes a prompt.

The prompts are the usual ones for base models, which have not been taught to follow instructions. Only the first
entry of a list is used: the first turn of a conversation, the first of several tests or answers. Knows nothing of
files.
"""

from __future__ import annotations

from dataclasses import dataclass
from string import Formatter
from typing import Any

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
    "own": DataSet("the project's own (launch/prompts/own_workload.jsonl)", PLAIN_TEMPLATES),
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
