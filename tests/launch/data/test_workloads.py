"""Workloads: every data set's published lines and the plain form, our own prompts, and files that cannot be used."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from launch.config import engine_settings
from launch.config.resources import conf
from launch.data.workloads import DATA_SETS, Problem, WorkloadSettings, load
from launch.sweep.settings import BenchSettings

MBPP_PROMPT = '"""\nAdd two numbers.\nassert add(1, 2) == 3\n"""\n'
TESTS = ["assert add(1, 2) == 3", "assert add(0, 0) == 0"]

PUBLISHED: list[tuple[str, dict[str, Any], tuple[str, str, str | None]]] = [
    # name, line, (id, prompt, reference)
    (
        "humaneval",
        {"task_id": "H/0", "prompt": "def f():\n", "canonical_solution": "    pass", "test": "", "entry_point": "f"},
        ("H/0", "def f():\n", "    pass"),
    ),
    (
        "mbpp",
        {"task_id": 11, "text": "Add two numbers.", "code": "def add", "test_list": TESTS},
        ("11", MBPP_PROMPT, "def add"),
    ),
    (
        "mbpp",  # the sanitized part
        {"task_id": 11, "prompt": "Add two numbers.", "code": "def add", "test_list": TESTS},
        ("11", MBPP_PROMPT, "def add"),
    ),
    ("gsm8k", {"question": "1 + {1}?", "answer": "2"}, ("0", "Question: 1 + {1}?\nAnswer:", "2")),
    (
        "mt_bench",
        {"question_id": 81, "category": "writing", "turns": ["Hi", "More"], "reference": ["a", "b"]},
        ("81", "Hi", "a"),
    ),
    ("mt_bench", {"question_id": 82, "category": "stem", "turns": ["Why?", "And?"]}, ("82", "Why?", None)),
    ("spec_bench", {"question_id": 1, "category": "qa", "turns": ["Who?"], "reference": None}, ("1", "Who?", None)),
    ("spec_bench", {"question_id": 2, "category": "rag", "turns": ["A?"], "reference": [["b", "c"]]}, ("2", "A?", "b")),
    ("spec_bench", {"question_id": 3, "category": "qa", "turns": ["A?"], "reference": []}, ("3", "A?", None)),
    (
        "classeval",
        {"task_id": "C_0", "skeleton": "class A:", "solution_code": "class A: pass"},
        ("C_0", "class A:", "class A: pass"),
    ),
    (
        "cnn_dailymail",
        {"id": "x", "article": "It rained.", "highlights": "Rain."},
        ("x", "###\nArticle: It rained.\n\nSummarize the above article in 3 sentences.\n", "Rain."),
    ),
    (
        "xsum",
        {"id": "y", "document": "It snowed.", "summary": "Snow."},
        ("y", "###\nArticle: It snowed.\n\nSummarize the above article in 1 sentence.\n", "Snow."),
    ),
]


def write(folder: Path, *lines: Any) -> str:
    path = folder / "lines.jsonl"
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines) + "\n")
    return str(path)


@pytest.mark.parametrize(("name", "line", "expected"), PUBLISHED)
def test_published_lines_are_read(
    name: str, line: dict[str, Any], expected: tuple[str, str, str | None], tmp_path: Path
) -> None:
    path = write(tmp_path, line)
    identifier, prompt, reference = expected
    category = line.get("category", name)
    assert load(WorkloadSettings(name, path)) == [Problem(identifier, category, prompt, reference, f"{path}, line 1")]


@pytest.mark.parametrize("name", DATA_SETS)
def test_plain_lines_are_read_for_every_data_set(name: str, tmp_path: Path) -> None:
    plain = {"id": "a", "category": "c", "prompt": "Once", "reference": "upon"}
    path = write(tmp_path, plain, "", {"turns": ["First", "Second"]})
    assert load(WorkloadSettings(name, path)) == [
        Problem("a", "c", "Once", "upon", f"{path}, line 1"),
        Problem("2", name, "First", None, f"{path}, line 3"),
    ]


def test_every_data_set_has_a_published_form_tested() -> None:
    assert {name for name, _, _ in PUBLISHED} == set(DATA_SETS) - {"own"}


def test_a_limit_takes_the_first_problems(tmp_path: Path) -> None:
    path = write(tmp_path, {"prompt": "a"}, {"prompt": "b"}, {"prompt": "c"})
    assert [problem.prompt for problem in load(WorkloadSettings(path=path, limit=2))] == ["a", "b"]
    assert len(load(WorkloadSettings(path=path, limit=10))) == 3


def test_our_own_workload_needs_no_file() -> None:
    problems = load(WorkloadSettings())
    assert len(problems) >= 20
    for field in ("id", "prompt"):
        assert len({getattr(problem, field) for problem in problems}) == len(problems)
    assert {problem.category for problem in problems} == {"code", "sums", "summary", "questions"}
    assert all(problem.reference for problem in problems if problem.category in ("sums", "summary"))
    assert all(50 <= len(problem.prompt) <= 1000 for problem in problems)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([], r"workload\.path=.*lines\.jsonl holds no problems"),
        (["{not json"], r"lines\.jsonl, line 1 is not JSON: .* at column 2"),
        ([{"prompt": "a"}, "", "[1]"], r"line 3 is not a JSON object; a line looks like"),
        (
            [{"question_": "a", "id": 1}],
            r"line 1 has question_, id; a line of gsm8k needs question, or prompt, or turns",
        ),
        ([{}], r"line 1 has no keys; a line of gsm8k needs"),
        ([{"prompt": " "}], r'line 1 has no text under "prompt"'),
        ([{"question": ""}], r'line 1 has no text under "question"'),
        ([{"prompt": 7}], r'line 1 has no text under "prompt"'),
        ([{"turns": []}], r'line 1 has no text under "turns"'),
        ([{"turns": [{"role": "user"}]}], r'line 1 has no text under "turns"'),
        (['{"prompt": "a\\ud800"}'], r'line 1 has a lone surrogate under "prompt": character 1'),
        ([{"question": "a", "answer": 5}], r'line 1 has something else than text under "answer"'),
        (
            [{"id": 1, "prompt": "a"}, {"id": "1", "prompt": "b"}],
            r"line 2 has the id '1', as .*line 1 has; ids must differ",
        ),
    ],
)
def test_lines_that_cannot_be_used_are_named(lines: list[Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        load(WorkloadSettings("gsm8k", write(tmp_path, *lines)))


def test_mbpp_needs_a_task_and_its_tests(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="line 1 has text, code; a line of mbpp needs text and test_list, or"):
        load(WorkloadSettings("mbpp", write(tmp_path, {"text": "Add.", "code": "def add"})))
    with pytest.raises(ValueError, match='line 1 has no text under "test_list"'):
        load(WorkloadSettings("mbpp", write(tmp_path, {"text": "Add.", "code": "def add", "test_list": []})))


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"workload\.path=.*absent\.jsonl cannot be read: No such file"):
        load(WorkloadSettings("gsm8k", str(tmp_path / "absent.jsonl")))
    with pytest.raises(ValueError, match="cannot be read: Is a directory; give a JSONL file"):
        load(WorkloadSettings("gsm8k", str(tmp_path)))


def test_a_line_that_is_not_utf8_is_named_however_long_the_file_is(tmp_path: Path) -> None:
    good = b"".join(b'{"prompt": "number %d"}\n' % number for number in range(1000))
    (tmp_path / "latin").write_bytes(good + b'{"prompt": "caf\xe9"}\n')
    with pytest.raises(ValueError, match=r"latin, line 1001 is not UTF-8 text: byte 15 .*save the file as UTF-8"):
        load(WorkloadSettings(path=str(tmp_path / "latin")))
    assert len(load(WorkloadSettings(path=str(tmp_path / "latin"), limit=1000))) == 1000


@pytest.mark.parametrize("name", [name for name in DATA_SETS if name != "own"])
def test_a_data_set_without_its_file_says_where_it_comes_from(name: str) -> None:
    with pytest.raises(ValueError) as raised:
        load(WorkloadSettings(name))
    data_set = DATA_SETS[name]
    for part in (f"workload={name} needs workload.path=FILE", data_set.title, data_set.expected_keys()):
        assert part in str(raised.value)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (WorkloadSettings("elsewhere"), r"workload\.name=elsewhere is unknown; it is one of own, humaneval"),
        (WorkloadSettings(limit=0), r"workload\.limit=0 must be at least 1"),
        (WorkloadSettings(max_new_tokens=0), r"workload\.max_new_tokens=0 must be at least 1"),
    ],
)
def test_settings_that_cannot_be_used_are_named(settings: WorkloadSettings, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load(settings)


def test_every_workload_can_be_chosen() -> None:
    engine_settings.register("bench", BenchSettings, workload=WorkloadSettings)
    chosen: dict[str, Any] = {}
    with initialize_config_dir(config_dir=str(conf()), version_base="1.3"):
        for file in (conf() / "workload").glob("*.yaml"):
            config = compose("bench", [f"workload={file.stem}", "workload.path=some.jsonl", "workload.limit=3"])
            chosen[file.stem] = OmegaConf.to_object(config.workload)
    assert chosen == {name: WorkloadSettings(name, "some.jsonl", 3) for name in DATA_SETS}
