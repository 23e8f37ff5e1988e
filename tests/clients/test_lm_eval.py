"""lm-eval against the server: every kind of request, with figures equal to those of its own `hf` model.

The tasks are made here, so that no data set is downloaded. The server is one of its own, as figures are compared in
float32. LOOKAHEAD_CLIENT_PYTHON names the interpreter that runs it if it is not the one that runs lm-eval.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.request import urlopen

import pytest

from tests.clients.importing import imported

lm_eval = imported("lm_eval")
lm_eval_tasks = imported("lm_eval.tasks")

SERVER_PYTHON = os.environ.get("LOOKAHEAD_CLIENT_PYTHON", sys.executable)
# The tasks' documents and prompts. What is scored ends in a word or in a whole sentence.
QUESTIONS = [
    {"question": "The capital of France is", "choices": ["Paris", "Berlin", "a large green apple"], "gold": 0},
    {"question": "Two plus two is", "choices": ["five", "four"], "gold": 1},
    {"question": "Water is made of hydrogen and", "choices": ["oxygen", "iron", "wood", "naïve 数 🙂"], "gold": 0},
    {"question": "The opposite of hot is", "choices": ["cold", "warm"], "gold": 0},
    {"question": "A week has", "choices": ["ten days", "seven days"], "gold": 1},
]
TEXTS = [
    {"text": "The sun rises in the east and sets in the west. Birds sing in the morning."},
    {"text": "def fibonacci(n):\n    return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)\n"},
    {"text": "One, two, three, four, five, six, seven, eight, nine, ten. " * 12},
]
TASKS = {
    "made_choice": """
output_type: multiple_choice
doc_to_text: "Q: {{question}}"
doc_to_choice: choices
doc_to_target: gold
metric_list: [{metric: acc}, {metric: acc_norm}]
""",
    "made_rolling": """
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: text
metric_list: [{metric: word_perplexity}]
""",
    "made_generation": """
output_type: generate_until
doc_to_text: "Q: {{question}}"
doc_to_target: "{{choices[gold]}}"
generation_kwargs: {until: ["\\n", "."], max_gen_toks: 12, do_sample: false}
metric_list: [{metric: exact_match}]
""",
}
MAX_LENGTH = 128  # shorter than the longest text, so that it is scored in windows
# Of these, local-completions keeps one token for generation, and one more where it scores whole texts.
KEPT = 2


class Server(NamedTuple):
    """A server that is running, and the folder of its model."""

    url: str
    folder: str


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    found = subprocess.run([SERVER_PYTHON, "-m", "launch.real_model"], capture_output=True, text=True, timeout=600)
    if found.returncode:
        pytest.skip(f"the real model is not there: {found.stderr.strip()}")
    command = [SERVER_PYTHON, "-m", "launch.serve", "model=smollm2", "model.dtype=float32", "server.port=0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr
            lines: list[str] = []
            while not (serving := re.search(r"serving \S+ on (http://\S+)", lines[-1] if lines else "")):
                lines.append(process.stderr.readline())
                assert lines[-1], "".join(lines)
            yield Server(serving[1], found.stdout.strip())
        finally:
            process.terminate()


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tasks")
    for name, settings in TASKS.items():
        documents = TEXTS if "rolling" in name else QUESTIONS
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(one) + "\n" for one in documents))
        head = f"task: {name}\ndataset_path: json\ndataset_kwargs: {{data_files: {{test: {folder}/{name}.jsonl}}}}\n"
        (folder / f"{name}.yaml").write_text(f"{head}test_split: test\n{settings.strip()}\n")
    return folder


def evaluate(tasks: Path, names: list[str], model: str, model_args: dict[str, Any], **options: Any) -> dict[str, Any]:
    """What each document of the tasks was answered with, and the metrics."""
    manager = lm_eval_tasks.TaskManager(include_path=str(tasks), include_defaults=False)
    results = lm_eval.simple_evaluate(
        model=model, model_args=model_args, tasks=names, task_manager=manager, bootstrap_iters=0, **options
    )
    answers = {
        name: [sample["filtered_resps"] for sample in sorted(samples, key=lambda sample: sample["doc_id"])]
        for name, samples in results["samples"].items()
    }
    metrics = {
        f"{name} {metric}": value
        for name, found in results["results"].items()
        for metric, value in found.items()
        if isinstance(value, float)
    }
    return {"answers": answers, "metrics": metrics}


def numbers(answers: Any) -> Iterator[float]:
    """All log-probabilities of answers; whether each is greedy, as 0 or 1."""
    if isinstance(answers, list | tuple):
        for answer in answers:
            yield from numbers(answer)
    else:
        yield float(answers)


@pytest.fixture(scope="module")
def expected(tasks: Path, server: Server) -> dict[str, Any]:
    settings = {"pretrained": server.folder, "dtype": "float32", "max_length": MAX_LENGTH - KEPT, "device": "cpu"}
    return evaluate(tasks, [*TASKS], "hf", settings, batch_size=1)


@pytest.mark.parametrize("batch_size", [1, 4])
@pytest.mark.parametrize(
    "options", [{"tokenizer_backend": "remote"}, {"num_concurrent": 3}], ids=["remote tokenizer", "own tokenizer"]
)
def test_figures_equal_those_of_its_own_model(
    tasks: Path, server: Server, expected: dict[str, Any], batch_size: int, options: dict[str, Any]
):
    settings = {"base_url": f"{server.url}/v1/completions", "max_length": MAX_LENGTH, **options}
    settings["model"] = server_model(server)
    if "tokenizer_backend" not in options:
        settings |= {"tokenizer": server.folder, "tokenizer_backend": "huggingface"}
    found = evaluate(tasks, [*TASKS], "local-completions", settings, batch_size=batch_size)
    for name in ("made_choice", "made_rolling"):
        theirs = [*numbers(expected["answers"][name])]
        assert len(theirs) >= 3
        assert [*numbers(found["answers"][name])] == pytest.approx(theirs, abs=1e-4)
    assert found["answers"]["made_generation"] == expected["answers"]["made_generation"]
    assert found["metrics"] == pytest.approx(expected["metrics"], rel=1e-4)


def test_generation_from_a_conversation(tasks: Path, server: Server):
    settings = {"base_url": f"{server.url}/v1/chat/completions", "model": server_model(server)}
    names = ["made_generation"]
    found = evaluate(tasks, names, "local-chat-completions", settings, apply_chat_template=True)
    hf = {"pretrained": server.folder, "dtype": "float32", "device": "cpu"}
    expected = evaluate(tasks, names, "hf", hf, batch_size=1, apply_chat_template=True)
    assert found["answers"] == expected["answers"]


def server_model(server: Server) -> str:
    """The name of the only model that the server has."""
    with urlopen(f"{server.url}/v1/models", timeout=30) as answer:
        return json.load(answer)["data"][0]["id"]
