"""launch/generate.py through its command line: what it prints, where, and how it reports bad input."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch

from launch.data.output import Printer
from launch.data.prompts import NamedPrompt
from launch.generate import Continuations, Format, GenerateSettings, output_of, shared_by_requests
from lp import Engine
from lp.engine import builder
from lp.engine.input import RequestBuilder
from lp.methods.registry import METHODS
from lp.runner.single_device import SingleDevice
from lp.scheduling.kv_budget import KVBudget
from parallel.comm.base import LocalExchange
from parallel.comm.channel import Channel
from parallel.groups.worker import run_engine
from tests.launch.conftest import Main

KEYS = [
    "id", "prompt_tokens", "token_ids", "text", "finish_reason", "steps", "tokens_per_step",
    "ttft_s", "decode_s", "tokens_per_s", "decode", "parallel", "ranks", "seed",
]  # fmt: skip


def test_json_is_one_object_on_stdout_and_nothing_else(main: Main, folder: str, llama: Engine) -> None:
    code, out, err = main(
        f"model.path={folder}", "prompt=def add(first, second):", "max_new_tokens=20", "format=json", "ignore_eos=true"
    )
    assert code == 0, err
    assert len(out.splitlines()) == 1
    record = json.loads(out)
    assert list(record) == KEYS
    expected = llama.generate("def add(first, second):", max_new_tokens=20)
    assert record["token_ids"][: len(expected.token_ids)] == expected.token_ids
    assert (record["decode"], record["parallel"], record["ranks"]) == ("auto", "single", 1)
    assert record["tokens_per_step"] == pytest.approx(20 / record["steps"], abs=1e-3)
    assert "loaded" in err


def test_text_is_streamed_and_figures_go_to_stderr(main: Main, folder: str, llama: Engine) -> None:
    code, out, err = main(f"model.path={folder}", "prompt=class Point", "max_new_tokens=30", "show_prompt=false")
    assert code == 0, err
    assert out == llama.generate("class Point", max_new_tokens=30).text + "\n"
    assert "tokens per step" in err
    assert "\x1b" not in out


def test_accepted_runs_are_coloured_if_asked(main: Main, folder: str) -> None:
    code, out, _ = main(f"model.path={folder}", "prompt=class Point", "max_new_tokens=60", "color=always")
    assert code == 0
    assert "\x1b[" in out


def test_jsonl_gives_a_line_for_each_prompt(main: Main, folder: str, tmp_path: Path) -> None:
    lines = [
        {"id": "a", "prompt": "def f(x):"},
        {"prompt": "class \u2028 Point:"},
        {"id": 7, "turns": ["self.x", "no"]},
    ]
    (tmp_path / "prompts.jsonl").write_text("\n".join(json.dumps(line, ensure_ascii=False) for line in lines) + "\n\n")
    code, out, err = main(f"model.path={folder}", "prompts=prompts.jsonl", "max_new_tokens=5", "format=json")
    assert code == 0, err
    assert [json.loads(line)["id"] for line in out.splitlines()] == ["a", "1", "7"]


def test_a_seed_gives_one_text_for_all_methods(main: Main, folder: str) -> None:
    texts = []
    for method in ("autoregressive", "jacobi", "prompt_lookup", "lookahead"):
        sampling = ["sampling.temperature=0.8", "sampling.top_p=0.9", "sampling.seed=1"]
        code, out, err = main(
            f"model.path={folder}", f"decode={method}", *sampling, "prompt=def f(", "max_new_tokens=24", "format=json"
        )
        assert code == 0, err
        record = json.loads(out)
        assert (record["decode"], record["seed"]) == (method, 1)
        texts.append(record["token_ids"])
    assert texts == [texts[0]] * 4


def test_stop_strings_and_log_probabilities(main: Main, folder: str) -> None:
    shared = [f"model.path={folder}", "prompt=def f(", "max_new_tokens=24", "format=json", "ignore_eos=true"]
    text = json.loads(main(*shared)[1])["text"]
    stop = re.findall(r"[A-Za-z_]{2,}", text)[-1]
    code, out, err = main(*shared, "sampling.logprobs=2", f"stop=[{json.dumps(stop)}]")
    assert code == 0, err
    record = json.loads(out)
    assert record["text"] == text[: text.index(stop)]
    assert record["finish_reason"] == "stop"
    assert [entry["token"] for entry in record["logprobs"]] == record["token_ids"]
    assert all(len(entry["top"]) == 2 for entry in record["logprobs"])


def test_a_grammar_is_kept(main: Main, folder: str, tmp_path: Path) -> None:
    (tmp_path / "schema.json").write_text('{"type": "array", "items": {"enum": [1, 2]}, "minItems": 3, "maxItems": 3}')
    common = f"model.path={folder}", "prompt=def ", "format=json"
    code, out, err = main(*common, "grammar.kind=json_schema", f"grammar.file={tmp_path / 'schema.json'}")
    assert code == 0, err
    record = json.loads(out)
    assert len(json.loads(record["text"])) == 3 and record["finish_reason"] == "stop"


def test_objects_of_a_schema_are_closed_unless_they_are_to_be_open(main: Main, folder: str) -> None:
    """No object can have what is required and not named, unless it may have what is not named."""
    common = f"model.path={folder}", "prompt=def ", "max_new_tokens=9", "grammar.kind=json_schema"
    schema = 'grammar.text={"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["b"]}'
    code, _, err = main(*common, schema)
    assert code == 2 and "nsatisfiable" in err
    assert main(*common, schema, "grammar.open=true")[0] == 0


def test_no_run_folders_are_left(main: Main, folder: str, tmp_path: Path) -> None:
    assert main(f"model.path={folder}", "prompt=x", "max_new_tokens=2")[0] == 0
    assert list(tmp_path.iterdir()) == []


def test_help_names_groups_and_settings(main: Main) -> None:
    code, out, _ = main("--help")
    assert code == 0
    assert f"decode={'|'.join(sorted(METHODS))}" in out
    assert "max_new_tokens: 128" in out
    assert "server" not in out


@pytest.mark.parametrize("text", ["${HOME}", "a ${"])
def test_a_literal_prompt_is_continued(text: str, main: Main, folder: str) -> None:
    code, out, err = main(f"model.path={folder}", f"prompt={text}", "max_new_tokens=2")
    assert code == 0, err
    assert out.startswith(text)


def test_a_biased_token_is_always_chosen(main: Main, folder: str) -> None:
    arguments = (f"model.path={folder}", "prompt=x", "max_new_tokens=3", "format=json")
    code, out, err = main(*arguments, "sampling.logit_bias={70: 100, 71: -100}")
    assert code == 0, err
    assert json.loads(out)["token_ids"] == [70, 70, 70]


LOADING_ENDS = {
    "Ctrl-C": (KeyboardInterrupt(), 130, "interrupted\n"),
    "no memory": (
        torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 1"),
        2,
        "error: CUDA out of memory. Tried to allocate 2.00 GiB. "
        "Use model.dtype=bfloat16, a GPU with more memory or a smaller model.\n",
    ),
}


@pytest.mark.parametrize("name", LOADING_ENDS)
def test_how_loading_ends_early(name: str, main: Main, monkeypatch: pytest.MonkeyPatch) -> None:
    error, code, message = LOADING_ENDS[name]

    def load(*settings: object) -> None:
        raise error

    monkeypatch.setattr(builder, "load", load)
    assert main("prompt=x") == (code, "", message)


def test_data_parallelism_with_one_rank_says_once_that_it_has_nobody_to_share_with(main: Main, folder: str) -> None:
    code, out, err = main(
        f"model.path={folder}", "prompt=class Point", "max_new_tokens=4", "format=json", "parallel=dp"
    )
    assert code == 0, err
    assert err.count("parallel=dp with one rank has nobody to share requests with") == 1
    assert json.loads(out)["parallel"] == "single"


def test_traces_of_all_steps_go_to_a_file(main: Main, folder: str, tmp_path: Path) -> None:
    prompts = ["prompt=def f(x):", "max_new_tokens=20", "format=json", "ignore_eos=true"]
    code, out, err = main(f"model.path={folder}", *prompts, "trace=steps.jsonl")
    assert code == 0, err
    record = json.loads(out)
    steps = [json.loads(line) for line in (tmp_path / "steps.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [step["step"] for step in steps] == [*range(record["steps"])]
    assert [token for step in steps for token in step["emitted"]] == record["token_ids"]
    assert "".join(step["text"] for step in steps) == record["text"]
    assert {step["prompt"] for step in steps} == {0}
    code, _, err = main(f"model.path={folder}", *prompts, "trace=missing/steps.jsonl")
    assert code == 2 and "trace=missing/steps.jsonl cannot be written" in err


def test_a_prompt_that_the_ranks_refuse_has_failed(llama: Engine, capsys: pytest.CaptureFixture[str]) -> None:
    """A front end may not know how much room its ranks have."""
    engine = Engine(llama.checkpoint, SingleDevice(llama.checkpoint.model), RequestBuilder(llama.checkpoint))
    engine.scheduler.budget, settings = KVBudget(1), GenerateSettings(max_new_tokens=400, format=Format.json)
    with Printer(output_of(settings, 1)) as printer:
        prompts, given = [NamedPrompt("0", "a", "prompt")], shared_by_requests(settings)
        texts = Continuations(RequestBuilder(llama.checkpoint), {}, prompts, given, printer)
        run_engine(engine, Channel(LocalExchange()), texts.queue, texts.emit)
    record = json.loads(capsys.readouterr().out)
    assert (record["finish_reason"], record["text"], texts.conclude()) == ("no_room", "", 1)
