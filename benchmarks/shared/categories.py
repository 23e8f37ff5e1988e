"""Prompts by category: HumanEval, GSM8K and Spec-Bench from a folder of JSONL files, or the project's own workload.

An instruct model is asked as in a chat, by the template of its tokenizer. A model without a template gets the texts as
they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.shared.decoded_texts import AUTOREGRESSIVE, DecodedText, MethodTotals, add_up
from benchmarks.shared.inputs import read_problems
from launch.data.workloads import Problem, WorkloadSettings

# All categories together.
ALL = "all"
MT_BENCH = frozenset({"writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities"})


@dataclass(frozen=True)
class Category:
    """Where the prompts of a category come from.

    data_set: one of launch/data/workloads.py; its file is DATA_SET.jsonl. kinds: the data set's own categories that
    belong to it; None takes all. question: what is asked in a chat; None continues the text without a chat.
    """

    data_set: str
    kinds: frozenset[str] | None = None
    question: str | None = "{text}"


CATEGORIES = {
    "HumanEval, raw": Category("humaneval", question=None),
    "HumanEval, chat": Category("humaneval", question="Complete this Python function:\n\n```python\n{text}\n```"),
    "GSM8K, chat": Category("gsm8k"),
    "MT-Bench, chat": Category("spec_bench", MT_BENCH),
    "summarisation": Category("spec_bench", frozenset({"summarization"})),
    "retrieval": Category("spec_bench", frozenset({"rag"})),
    "translation": Category("spec_bench", frozenset({"translation"})),
}


@dataclass(frozen=True)
class CategoryPrompt:
    """A prompt before a tokenizer has seen it. question: what is asked in a chat; None if `text` is continued."""

    category: str
    text: str
    question: str | None

    def for_model(self, tokenizer: Any) -> str:
        """The text that the model continues."""
        if self.question is None or not getattr(tokenizer, "chat_template", None):
            return self.text
        messages = [{"role": "user", "content": self.question}]
        return tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)


def read_categories(folder: Path | None, num_prompts: int, skip: int = 0) -> list[CategoryPrompt]:
    """The first prompts of every category, `num_prompts` in all, as many of each category as of the others.

    skip: leaves out all prompts that a call with this number of prompts may give, in whatever category. folder: has
    humaneval.jsonl, gsm8k.jsonl and spec_bench.jsonl; a category whose file is missing is left out. None takes the
    project's own workload. Ends the program with a message if there is no prompt or a file cannot be read.
    """
    found = _own() if folder is None else _from_folder(folder)
    if not found:
        files = ", ".join(sorted({f"{one.data_set}.jsonl" for one in CATEGORIES.values()}))
        raise SystemExit(f"--prompts {folder} has none of the files {files}")
    first = -(-skip // len(found))
    shares = _shares(num_prompts, len(found))
    return [prompt for prompts, share in zip(found, shares) for prompt in prompts[first : first + share]]


def by_category(prompts: Sequence[CategoryPrompt]) -> dict[str, list[CategoryPrompt]]:
    """The prompts of each category, in their order."""
    groups: dict[str, list[CategoryPrompt]] = {}
    for prompt in prompts:
        groups.setdefault(prompt.category, []).append(prompt)
    return groups


def _shares(num_prompts: int, num_categories: int) -> list[int]:
    """Splits a number into parts that differ by one at most; the larger ones come first."""
    least, more = divmod(num_prompts, num_categories)
    return [least + (number < more) for number in range(num_categories)]


def _own() -> list[list[CategoryPrompt]]:
    groups: dict[str, list[CategoryPrompt]] = {}
    for problem in read_problems(WorkloadSettings()):
        prompt = CategoryPrompt(problem.category, problem.prompt, problem.prompt)
        groups.setdefault(problem.category, []).append(prompt)
    return list(groups.values())


def _from_folder(folder: Path) -> list[list[CategoryPrompt]]:
    found = []
    for name, category in CATEGORIES.items():
        path = folder / f"{category.data_set}.jsonl"
        if path.is_file():
            problems = read_problems(WorkloadSettings(category.data_set, str(path)))
            wanted = [one for one in problems if category.kinds is None or one.category in category.kinds]
            found.append([CategoryPrompt(name, one.prompt, _question(one, category)) for one in wanted])
    return [prompts for prompts in found if prompts]


def _question(problem: Problem, category: Category) -> str | None:
    """What is asked in a chat: without the frame in which base models are given a question."""
    if category.question is None:
        return None
    text = problem.prompt.removeprefix("Question: ").removesuffix("\nAnswer:").rstrip()
    return category.question.replace("{text}", text)


def totals_by_category(
    asked: Sequence[CategoryPrompt], texts: Mapping[str, list[DecodedText]]
) -> dict[str, dict[str, MethodTotals]]:
    """Adds up one round's texts in each category, and in all of them (ALL), by method.

    texts: by method, in the order of the prompts. The expected ones are those of autoregressive decoding.
    """

    def of(numbers: Sequence[int]) -> dict[str, MethodTotals]:
        own = {method: [decoded[number] for number in numbers] for method, decoded in texts.items()}
        return {method: add_up(decoded, own[AUTOREGRESSIVE]) for method, decoded in own.items()}

    categories = dict.fromkeys(one.category for one in asked)
    found = {name: of([n for n, one in enumerate(asked) if one.category == name]) for name in categories}
    return {**found, ALL: of(range(len(asked)))}


def totals_as_json(rounds: Sequence[Mapping[str, Mapping[str, MethodTotals]]]) -> list[dict[str, Any]]:
    """Returns what `totals_by_category` has found in each round as JSON values."""
    return [
        {category: {method: asdict(total) for method, total in own.items()} for category, own in one.items()}
        for one in rounds
    ]
