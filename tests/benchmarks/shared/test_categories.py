"""Prompts by category: from files, from the project's own workload, with and without a chat template."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.shared.categories import CATEGORIES, by_category, read_categories


class ChatTokenizer:
    chat_template = "template"

    def apply_chat_template(self, messages, tokenize, add_generation_prompt):
        assert not tokenize and add_generation_prompt
        return f"<user>{messages[0]['content']}<assistant>"


class PlainTokenizer:
    chat_template = None


def test_categories_share_the_prompts_equally(prompts_folder: Path) -> None:
    groups = by_category(read_categories(prompts_folder, 5))
    assert {name: len(prompts) for name, prompts in groups.items()} == {
        "HumanEval, raw": 2,
        "HumanEval, chat": 1,
        "MT-Bench, chat": 1,
        "retrieval": 1,
    }
    assert set(groups) < set(CATEGORIES)  # gsm8k.jsonl is missing, and nothing of Spec-Bench is translated


def test_a_question_is_asked_by_the_template_and_a_raw_prompt_is_not(prompts_folder: Path) -> None:
    raw, _, asked, *_ = read_categories(prompts_folder, 5)
    assert raw.for_model(ChatTokenizer()) == "def f(x):\n"
    expected = "<user>Complete this Python function:\n\n```python\ndef f(x):\n```<assistant>"
    assert asked.for_model(ChatTokenizer()) == expected
    assert asked.for_model(PlainTokenizer()) == "def f(x):\n"


def test_sums_are_asked_without_the_frame_for_base_models(tmp_path: Path) -> None:
    (tmp_path / "gsm8k.jsonl").write_text('{"question": "How many {eggs}?", "answer": "4"}\n')
    (prompt,) = read_categories(tmp_path, 1)
    assert prompt.category == "GSM8K, chat"
    assert prompt.for_model(ChatTokenizer()) == "<user>How many {eggs}?<assistant>"


def test_without_a_folder_the_own_workload_is_asked() -> None:
    groups = by_category(read_categories(None, 8))
    assert len(groups) > 1 and sum(map(len, groups.values())) == 8


def test_an_empty_folder_is_told(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"has none of the files gsm8k.jsonl, humaneval.jsonl, spec_bench.jsonl"):
        read_categories(tmp_path, 8)
