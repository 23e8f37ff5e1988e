"""launch/generate.py through its command line: what it prints, where, and how it reports bad input."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from lp import Engine
from lp.engine import builder
from lp.methods.registry import METHODS
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
    for refused, words in {
        "grammar.kind=xml": "kind 'xml' is unknown",
        "grammar.text=a": "grammar.kind must say",
        "+grammar.kind=regex": "is empty",
    }.items():
        code, _, err = main(*common, refused.removeprefix("+"))
        assert code != 0 and words in err


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


BAD_ARGUMENTS = {
    "wrong key": (["decode.windw=3"], "windw"),
    "wrong type": (["decode.window=wide"], "decode.window"),
    "unknown group choice": (["decode=magic"], "lookahead"),
    "unknown enum value": (["parallel.mode=tensor"], "parallel.mode"),
    "not key=value": (["fibonacci"], "key=value"),
    "hydra grammar": (["stop=[a"], "stop"),
    "W out of range": (["decode=lookahead", "decode.window=0"], "decode.window=0"),
    "N out of range": (["decode.ngram=1"], "decode.ngram=1"),
    "G out of range": (["decode=lookahead", "decode.guesses=100000"], "decode.guesses=100000"),
    "too many rows": (["decode=lookahead", "decode.window=128", "decode.ngram=32", "decode.guesses=256"], "rows"),
    "temperature": (["sampling.temperature=-1"], "temperature=-1"),
    "top_p": (["sampling.top_p=1.5"], "top_p=1.5"),
    "logit_bias": (
        ["sampling.logit_bias={99999: 1.0}"],
        "logit_bias names token 99999, but the vocabulary has ids 0 to",
    ),
    "max_new_tokens": (["max_new_tokens=-5"], "max_new_tokens=-5"),
    "longer than the context": (["max_new_tokens=100000"], "context of 640 tokens"),
    "dtype": (["model.dtype=int3"], "int3"),
    "device": (["model.device=abacus"], "abacus"),
    "threads": (["parallel.threads=0"], "parallel.threads=0"),
    "more ranks than were started": (["parallel.lp=3"], "lp=3"),
    "nccl without a GPU": (["parallel.exchange=nccl", "model.device=cpu"], "nccl"),
    "missing checkpoint": (["model.path=/no/such/folder"], "/no/such/folder"),
    "numbered GPU": (["model.device=cuda:99"], "model.device=cuda:99"),
}


@pytest.mark.parametrize("name", BAD_ARGUMENTS)
def test_bad_arguments_give_one_message(name: str, main: Main, folder: str) -> None:
    arguments, expected = BAD_ARGUMENTS[name]
    code, out, err = main(f"model.path={folder}", "prompt=x", *arguments)
    messages = [
        line
        for line in err.splitlines()
        if not line.startswith(("keys and values", "loaded", "measuring", "milliseconds"))
    ]
    assert code == 2
    assert out == ""
    assert len(messages) == 1, err
    assert messages[0].startswith("error: ")
    assert expected in messages[0]


def test_a_missing_path_gives_one_message(main: Main) -> None:
    assert main("model=checkpoint", "prompt=x") == (
        2, "", "error: model.path must be given, as key=value; --help lists the keys\n"
    )  # fmt: skip


def pickle_only(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def truncated(folder: Path) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[: weights.stat().st_size // 2])


def unknown_architecture(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    config |= {"model_type": "abacus", "architectures": ["AbacusForCausalLM"]}
    (folder / "config.json").write_text(json.dumps(config))


@pytest.mark.parametrize(
    ("spoil", "expected"), [(pickle_only, "pickle"), (truncated, "cannot be loaded"), (unknown_architecture, "abacus")]
)
def test_bad_checkpoints_give_one_message(
    spoil: Callable[[Path], None], expected: str, main: Main, folder: str, tmp_path: Path
) -> None:
    bad = tmp_path / "bad"
    shutil.copytree(folder, bad)
    spoil(bad)
    code, out, err = main(f"model.path={bad}", "prompt=x")
    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 1, err
    assert err.startswith("error: ") and expected in err


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


BAD_PROMPTS = {
    "no prompt": ([], None, "give one of"),
    "empty prompt": (["prompt="], None, "give one of"),
    "two prompts": (["prompt=a", "prompt_file=bad"], b"b", "prompt and prompt_file"),
    "missing file": (["prompts=nowhere.jsonl"], None, "nowhere.jsonl cannot be read"),
    "malformed line": (["prompts=bad"], b'{"prompt": "a"}\n{"prompt": ', "bad, line 2 is not JSON"),
    "no text": (["prompts=bad"], b'{"text": "a"}', 'bad, line 1 has no text under "prompt"'),
    "wrong type": (["prompts=bad"], b'{"prompt": 3}', "bad, line 1 has no text"),
    "no lines": (["prompts=bad"], b"\n", "holds no prompts"),
    "invalid UTF-8": (["prompt_file=bad"], b"def \xff", "byte 4"),
    "lone surrogate": (["prompts=bad"], b'{"prompt": "a\\ud800"}', "bad, line 1: the prompt is not valid Unicode"),
    "too long": (["prompts=bad"], json.dumps({"prompt": "abc " * 3000}).encode(), "bad, line 1: the prompt has"),
}


@pytest.mark.parametrize("name", BAD_PROMPTS)
def test_bad_prompts_give_one_message_before_any_work(name: str, main: Main, folder: str, tmp_path: Path) -> None:
    arguments, content, expected = BAD_PROMPTS[name]
    if content is not None:
        (tmp_path / "bad").write_bytes(content)
    code, out, err = main(f"model.path={folder}", *arguments)
    messages = [
        line
        for line in err.splitlines()
        if not line.startswith(("keys and values", "loaded", "measuring", "milliseconds"))
    ]
    assert (code, out) == (2, "")
    assert len(messages) == 1, err
    assert expected in messages[0]


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
