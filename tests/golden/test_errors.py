"""What a user is told of a mistake: the exit code or status, and the names and values that one message contains.

How a message is worded is free.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from lp import (
    Autoregressive,
    Beam,
    BestOf,
    Contrastive,
    DecodeLimits,
    DraftModel,
    Engine,
    Grammar,
    Jacobi,
    Lookahead,
    Medusa,
    PromptLookup,
    Sampling,
    Stopping,
)
from lp.engine.input import RequestBuilder
from lp.request import DecodingMethod
from lp.sampling.settings import LARGEST_SEED
from tests.launch.conftest import Main
from tests.launch.server.harness import LIMIT_S, Running
from tests.models import CONTEXT, VOCAB_SIZE

LARGEST_ID = VOCAB_SIZE - 1


def missing(names: list[str], message: str) -> list[str]:
    return [name for name in names if name not in message]


# The command line: arguments, and what the message contains.

ARGUMENTS: list[tuple[list[str], list[str]]] = [
    (["decode.windw=3"], ["windw"]),
    (["decode=jacobi", "decode.windw=3"], ["decode.windw"]),
    (["decode.max_rows=wide"], ["decode.max_rows", "wide"]),
    (["decode=magic"], ["magic", "lookahead"]),
    (["parallel.mode=tensor"], ["parallel.mode", "tensor"]),
    (["fibonacci"], ["fibonacci", "key=value"]),
    (["stop=[a"], ["stop"]),
    (["decode=lookahead", "decode.window=0"], ["decode.window=0", "lookahead", "1", "128"]),
    (["decode.ngram=1"], ["decode.ngram=1", "2", "32"]),
    (["decode=lookahead", "decode.guesses=100000"], ["decode.guesses=100000", "256"]),
    (["decode=lookahead", "decode.window=128", "decode.ngram=32", "decode.guesses=256"], ["4096", "window", "guesses"]),
    (["decode=jacobi", "decode.window=many"], ["decode.window=many", "auto"]),
    (["decode=medusa"], ["medusa", "model.heads"]),
    (["decode=draft_model"], ["draft_model", "draft.path", "draft.layers"]),
    (["decode=best_of"], ["temperature=0", "best_of"]),
    (["sampling.temperature=-1"], ["temperature=-1"]),
    (["sampling.top_p=1.5"], ["top_p=1.5"]),
    (["sampling.logit_bias={99999: 1.0}"], ["logit_bias", "99999", str(LARGEST_ID)]),
    (["max_new_tokens=-5"], ["max_new_tokens=-5"]),
    (["max_new_tokens=100000"], ["max_new_tokens=100000", str(CONTEXT)]),
    (["model.dtype=int3"], ["dtype", "int3", "bfloat16"]),
    (["model.device=abacus"], ["abacus"]),
    (["model.device=cuda:99"], ["model.device=cuda:99"]),
    (["model.path=/no/such/folder"], ["/no/such/folder"]),
    (["parallel.threads=0"], ["parallel.threads=0"]),
    (["parallel.lp=3"], ["lp=3", "1"]),
    (["parallel.exchange=nccl", "model.device=cpu"], ["nccl"]),
    (["grammar.kind=xml", "grammar.text=a"], ["xml"]),
    (["grammar.text=a"], ["grammar.kind"]),
    (["grammar.kind=json_schema", "grammar.text={"], ["json_schema"]),
    (["grammar.kind=json_schema", "grammar.file=nowhere.json"], ["grammar.file", "nowhere.json"]),
    (["corpus=nowhere.corpus"], ["nowhere.corpus"]),
    (["trace=missing/steps.jsonl"], ["trace", "missing/steps.jsonl"]),
]

# The content of the file `bad`, if there is one.
PROMPTS: list[tuple[list[str], bytes | None, list[str]]] = [
    ([], None, ["prompt", "prompt_file", "prompts"]),
    (["prompt="], None, ["prompt"]),
    (["prompt=a", "prompt_file=bad"], b"b", ["prompt", "prompt_file"]),
    (["prompts=nowhere.jsonl"], None, ["nowhere.jsonl"]),
    (["prompts=bad"], b'{"prompt": "a"}\n{"prompt": ', ["bad", "line 2", "JSON"]),
    (["prompts=bad"], b'{"text": "a"}', ["bad", "line 1", '"prompt"']),
    (["prompts=bad"], b'{"prompt": 3}', ["bad", "line 1"]),
    (["prompts=bad"], b"\n", ["bad"]),
    (["prompt_file=bad"], b"def \xff", ["bad", "byte 4"]),
    (["prompts=bad"], b'{"prompt": "a\\ud800"}', ["bad", "line 1", "Unicode"]),
    (["prompts=bad"], json.dumps({"prompt": "abc " * 3000}).encode(), ["bad", "line 1", str(CONTEXT)]),
]


def pickle_only(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def truncated(folder: Path) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[: weights.stat().st_size // 2])


def unknown_architecture(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    config |= {"model_type": "abacus", "architectures": ["AbacusForCausalLM"]}
    (folder / "config.json").write_text(json.dumps(config))


def assert_one_message(found: tuple[int, str, str], names: list[str]) -> None:
    code, out, err = found
    messages = [line for line in err.splitlines() if line.startswith("error: ")]
    assert (code, out, len(messages)) == (2, "", 1), err
    assert missing(names, messages[0]) == [], messages[0]
    assert "Traceback" not in err


@pytest.mark.parametrize(("arguments", "names"), ARGUMENTS, ids=[" ".join(row[0]) for row in ARGUMENTS])
def test_a_bad_argument(arguments: list[str], names: list[str], main: Main, folder: str) -> None:
    assert_one_message(main(f"model.path={folder}", "prompt=x", *arguments), names)


@pytest.mark.parametrize(("arguments", "content", "names"), PROMPTS)
def test_a_bad_prompt(
    arguments: list[str], content: bytes | None, names: list[str], main: Main, folder: str, tmp_path: Path
) -> None:
    if content is not None:
        (tmp_path / "bad").write_bytes(content)
    assert_one_message(main(f"model.path={folder}", *arguments), names)


@pytest.mark.parametrize(
    "argument",
    [
        "decode.window=0", "sampling.temperature=nan", "sampling.top_k=-1", "max_new_tokens=0", "grammar.kind=xml",
        "scheduler.max_step_rows=0",
    ],
)  # fmt: skip
def test_settings_are_checked_before_a_model_is_looked_for(argument: str, main: Main) -> None:
    name, _, value = argument.partition("=")
    assert_one_message(
        main("model.path=/no/such/folder", "prompt=x", "decode=lookahead", argument), [name.split(".")[-1], value]
    )


def test_a_missing_path(main: Main) -> None:
    assert_one_message(main("model=checkpoint", "prompt=x"), ["model.path"])


@pytest.mark.parametrize(
    ("spoil", "names"), [(pickle_only, ["pickle"]), (truncated, ["bad"]), (unknown_architecture, ["abacus"])]
)
def test_a_bad_checkpoint(
    spoil: Callable[[Path], None], names: list[str], main: Main, folder: str, tmp_path: Path
) -> None:
    shutil.copytree(folder, tmp_path / "bad")
    spoil(tmp_path / "bad")
    assert_one_message(main(f"model.path={tmp_path / 'bad'}", "prompt=x"), names)


# HTTP: fields of a completion of the prompt "a", the field that `param` names, and what the message contains.

FIELDS: list[tuple[dict[str, Any], str | None, list[str]]] = [
    ({"prompt": None}, "prompt", ["prompt"]),
    ({"prompt": ""}, "prompt", ["prompt"]),
    ({"prompt": []}, "prompt", ["prompt"]),
    ({"prompt": 5}, "prompt", ["prompt"]),
    ({"prompt": ["a", 1]}, "prompt", ["prompt"]),
    ({"prompt": ["a", ""]}, "prompt", ["prompt"]),
    ({"prompt": [[1], [99999]]}, "prompt", ["99999", str(LARGEST_ID)]),
    ({"prompt": [1, 99999]}, "prompt", ["99999", str(LARGEST_ID)]),
    ({"prompt": [-1]}, "prompt", ["-1"]),
    ({"prompt": [1, True]}, "prompt", ["prompt"]),
    ({"prompt": ["a"] * 1025}, "prompt", ["1025", "1024", "server.max_choices"]),
    ({"prompt": ["a", "b"], "n": 513}, "n", ["n=513", "1024", "server.max_choices"]),
    ({"prompt": "a " * 5 * CONTEXT}, "prompt", [str(CONTEXT)]),
    ({"max_tokens": CONTEXT}, "max_tokens", [str(CONTEXT), str(CONTEXT + 1)]),
    ({"max_tokens": 10**4000}, "max_tokens", [str(CONTEXT), "1000"]),
    ({"max_tokens": -1}, "max_tokens", ["max_tokens=-1"]),
    ({"max_tokens": 0}, "max_tokens", ["max_tokens=0"]),
    ({"max_tokens": "ten"}, "max_tokens", ["max_tokens", "integer", "'ten'"]),
    ({"max_tokens": 2.5}, "max_tokens", ["max_tokens", "2.5"]),
    ({"max_tokens": True}, "max_tokens", ["max_tokens"]),
    ({"max_tokens": 4, "min_tokens": 5}, "min_tokens", ["min_tokens=5", "max_tokens=4"]),
    ({"n": 10**12}, "n", ["n=1000000000000", "1024"]),
    ({"n": 0}, "n", ["n=0"]),
    ({"best_of": 0}, "best_of", ["best_of=0"]),
    ({"best_of": 3000}, "best_of", ["best_of=3000"]),
    ({"best_of": 2, "n": 3}, "best_of", ["best_of=2", "n=3"]),
    ({"best_of": 2, "stream": True}, "best_of", ["best_of=2", "stream"]),
    ({"suffix": "b"}, "suffix", ["suffix", "tokenizer"]),
    ({"suffix": "b", "echo": True}, None, ["suffix", "echo"]),
    ({"bad_words": [" "]}, "bad_words", ["bad_words"]),
    ({"bad_words": "a"}, "bad_words", ["bad_words"]),
    ({"allowed_token_ids": []}, "allowed_token_ids", ["allowed_token_ids"]),
    ({"allowed_token_ids": [99999]}, "allowed_token_ids", ["allowed_token_ids", "99999", str(LARGEST_ID)]),
    ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens", ["truncate_prompt_tokens=0", "1"]),
    ({"repeat_penalty": "x"}, None, ["penalty", "x"]),
    ({"echo": True, "max_tokens": -1}, None, ["max_tokens=-1", "0"]),
    ({"echo": True, "logprobs": 21}, "logprobs", ["logprobs=21"]),
    ({"prompt_logprobs": 21}, "prompt_logprobs", ["prompt_logprobs=21"]),
    ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs", ["prompt_logprobs", "stream"]),
    ({"logprobs": 21}, "logprobs", ["logprobs=21", "20"]),
    ({"logprobs": -1}, "logprobs", ["logprobs=-1"]),
    ({"logprobs": True}, "logprobs", ["logprobs"]),
    ({"temperature": -0.1}, "temperature", ["temperature=-0.1"]),
    ({"temperature": "hot"}, "temperature", ["temperature", "hot"]),
    ({"top_p": 1.5}, "top_p", ["top_p=1.5"]),
    ({"top_p": 0}, "top_p", ["top_p=0"]),
    ({"top_k": -2}, "top_k", ["top_k=-2"]),
    ({"presence_penalty": 3}, "presence_penalty", ["presence_penalty"]),
    ({"seed": -2}, "seed", ["seed=-2"]),
    ({"seed": 2**63}, "seed", ["seed=", str(2**63)]),
    ({"stop": 3}, "stop", ["stop"]),
    ({"stop": [""]}, "stop", ["stop"]),
    ({"stop": ["x"] * 17}, "stop", ["stop", "16"]),
    ({"stop": "x" * 257}, "stop", ["stop", "256"]),
    ({"stop_token_ids": ["a"]}, "stop_token_ids[0]", ["stop_token_ids[0]"]),
    ({"logit_bias": {"99999": 1}}, "logit_bias", ["logit_bias", "99999", str(LARGEST_ID)]),
    ({"logit_bias": {"1": 101}}, "logit_bias", ["logit_bias", "101", "100"]),
    ({"logit_bias": {"one": 1}}, None, ["logit_bias.one"]),
    ({"logit_bias": [1]}, "logit_bias", ["logit_bias"]),
    ({"priority": -1}, "priority", ["priority=-1", "0.01", "100"]),
    ({"priority": "high"}, "priority", ["priority", "high"]),
    ({"stream": "yes"}, "stream", ["stream"]),
    ({"stream_options": {"include_usage": True}}, "stream_options", ["stream"]),
    ({"model": 5}, "model", ["model"]),
    ({"decode": "lookahead"}, "decode", ["decode"]),
    ({"decode": {"method": "magic"}}, "decode", ["'magic'", "lookahead"]),
    ({"decode": {"method": "lookahead", "depth": 3}}, "decode", ["decode.depth", "lookahead", "window"]),
    ({"decode": {"method": "lookahead", "window": "7"}}, "decode", ["decode.window", "int", "'7'"]),
    ({"decode": {"method": "lookahead", "window": True}}, "decode", ["decode.window", "int", "True"]),
    ({"decode": {"method": "lookahead", "prompt_drafts": 1}}, "decode", ["decode.prompt_drafts", "bool", "1"]),
    ({"decode": {"method": "autoregressive", "window": 3}}, "decode", ["decode.window", "autoregressive"]),
    ({"decode": {"method": "medusa", "exact": 1}}, "decode", ["decode.exact", "bool"]),
    ({"decode": {"method": 3}}, "decode", ["3", "lookahead"]),
    ({"decode": {"method": "lookahead", "window": 0}}, "decode", ["decode.window=0"]),
    ({"decode": {"method": "lookahead", "ngram": 1}}, "decode", ["decode.ngram=1"]),
    ({"decode": {"method": "lookahead", "guesses": 10**9}}, "decode", ["decode.guesses=1000000000"]),
    ({"decode": {"method": "lookahead", "window": 128, "ngram": 32, "guesses": 256}}, "decode", ["4096"]),
    ({"decode": {"method": "medusa"}}, "decode", ["medusa", "model.heads"]),
    ({"decode": {"method": "draft_model"}}, "decode", ["draft_model", "draft.path"]),
    ({"decode": {"method": "best_of"}, "temperature": 0}, "temperature", ["temperature=0", "best_of"]),
    ({"decode": {"method": "beam", "num_beams": 99}}, "decode", ["decode.num_beams=99", "beam", "32"]),
    ({"decode": {"method": "beam"}, "stream": True}, "stream", ["beam", "stream"]),
    ({"decode": {"method": "beam"}, "logprobs": 1}, "logprobs", ["logprobs=1", "beam"]),
    ({"decode": {"method": "contrastive", "alpha": 2}}, "decode", ["decode.alpha=2"]),
    ({"response_format": {"type": "xml"}}, "response_format", ["response_format", "json_schema"]),
    ({"guided_json": {"items": {"type": "strin"}}}, "guided_json", ["#/items", "strin"]),
    ({"guided_regex": "a(b"}, "guided_regex", ["guided_regex", "a(b"]),
    ({"guided_grammar": "start: nowhere"}, "guided_grammar", ["guided_grammar", "nowhere"]),
    ({"guided_choice": ["a", 1]}, "guided_choice", ["choice"]),
    ({"structured_outputs": {"json_object": "x"}}, "structured_outputs", ["json_object", "true"]),
    ({"guided_regex": "a", "guided_json": {}}, "guided_regex", ["guided_regex", "guided_json"]),
]

# Bodies as they are, and the code.
BODIES: list[tuple[bytes, str | None, list[str]]] = [
    (b"", "invalid_json", ["JSON"]),
    (b"{", "invalid_json", ["JSON"]),
    (b'{"prompt": "a",}', "invalid_json", ["JSON"]),
    (b"prompt=a", "invalid_json", ["JSON"]),
    (b'["a"]', "invalid_json", ["JSON object"]),
    (b"null", "invalid_json", ["JSON object"]),
    (b"[" * 100_000, "invalid_json", ["JSON"]),
    (b'{"prompt": "a\xff"}', "invalid_utf8", ["UTF-8", "byte 13"]),
    (b'{"prompt": "\\ud800"}', "invalid_json", ["JSON"]),
    (b'{"prompt": "a", "temperature": NaN}', None, ["temperature"]),
    (b'{"prompt": "a", "temperature": 1e999}', None, ["temperature"]),
]

MESSAGES = [{"role": "user", "content": "a"}]
# The method, the path and the body; the status and the code; what the message contains.
ROUTES: list[tuple[str, str, dict[str, Any] | None, int, str | None, list[str]]] = [
    ("POST", "/v1/completions", {"prompt": [1] * (CONTEXT + 1)}, 400, "context_length_exceeded", [str(CONTEXT + 1)]),
    ("POST", "/v1/completions", {"prompt": "a", "model": "gpt-9"}, 404, "model_not_found", ["'gpt-9'", "llama"]),
    ("POST", "/v1/chat/completions", {"messages": MESSAGES}, 400, "no_chat_template", ["llama"]),
    ("POST", "/v1/chat/completions", {}, 400, None, ["messages"]),
    ("POST", "/v1/chat/completions", {"messages": []}, 400, None, ["messages"]),
    ("POST", "/v1/chat/completions", {"messages": [{"role": "king"}]}, 400, None, ["messages[0].role", "'king'"]),
    (
        "POST",
        "/v1/chat/completions",
        {"messages": MESSAGES, "max_completion_tokens": 0},
        400,
        None,
        ["max_completion_tokens=0"],
    ),
    ("GET", "/v1/models/gpt-9", None, 404, "model_not_found", ["gpt-9"]),
    ("GET", "/v2/nothing", None, 404, "not_found", ["GET /v2/nothing"]),
    ("GET", "/v1/completions", None, 405, "method_not_allowed", ["GET /v1/completions"]),
    ("POST", "/tokenize", {}, 400, None, ["prompt", "messages"]),
    ("POST", "/tokenize", {"prompt": 3}, 400, None, ["prompt", "3"]),
    ("POST", "/detokenize", {"tokens": [9999]}, 400, None, ["tokens", str(LARGEST_ID)]),
    ("POST", "/v1/responses", {}, 400, None, ["input"]),
]


def assert_error(answer: httpx.Response, status: int, param: str | None, code: str | None, names: list[str]) -> None:
    """One message of one line in OpenAI's form."""
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert answer.json().keys() == {"error"} and error.keys() == {"message", "type", "param", "code"}
    assert "\n" not in error["message"] and "Traceback" not in error["message"] and len(error["message"]) <= 400
    assert missing(names, error["message"]) == [], error["message"]
    assert param is None or error["param"] == param
    assert code is None or error["code"] == code


@pytest.mark.parametrize(("fields", "param", "names"), FIELDS, ids=[json.dumps(row[0])[:50] for row in FIELDS])
def test_a_bad_field(fields: dict[str, Any], param: str | None, names: list[str], server: Running) -> None:
    assert_error(server.post("/v1/completions", **{"prompt": "a", **fields}), 400, param, None, names)


@pytest.mark.parametrize(("content", "code", "names"), BODIES, ids=[repr(row[0])[:30] for row in BODIES])
def test_a_bad_body(content: bytes, code: str | None, names: list[str], server: Running) -> None:
    headers = {"content-type": "application/json"}
    answer = httpx.post(f"{server.url}/v1/completions", content=content, headers=headers, timeout=LIMIT_S)
    assert_error(answer, 400, None, code, names)
    server.assert_serves()


@pytest.mark.parametrize(("method", "path", "body", "status", "code", "names"), ROUTES)
def test_a_bad_route_or_model(
    method: str,
    path: str,
    body: dict[str, Any] | None,
    status: int,
    code: str | None,
    names: list[str],
    server: Running,
) -> None:
    answer = httpx.request(method, server.url + path, json=body, timeout=LIMIT_S)
    assert_error(answer, status, None, code, names)


@pytest.mark.parametrize("authorization", [None, "Bearer wrong", "Basic secret", "secret"])
@pytest.mark.parametrize(
    ("method", "path"), [("GET", "/v1/models"), ("POST", "/v1/completions"), ("POST", "/tokenize")]
)
def test_a_bad_key(authorization: str | None, method: str, path: str, locked: Running) -> None:
    headers = {"authorization": authorization} if authorization else {}
    answer = httpx.request(method, locked.url + path, headers=headers)
    assert_error(answer, 401, None, "invalid_api_key", ["API key"])
    assert answer.headers["www-authenticate"] == "Bearer" and "secret" not in answer.text


def test_a_body_that_is_too_large(locked: Running) -> None:
    headers = {"authorization": "Bearer secret"}
    answer = httpx.post(f"{locked.url}/v1/completions", json={"prompt": "a" * 5000}, headers=headers)
    assert_error(answer, 413, None, "body_too_large", ["4096"])


@pytest.mark.parametrize(
    ("given", "names"),
    [
        ({"compile": True}, ["compile=True", "auto", "on", "off"]),
        ({"prefix_reuse": "mine"}, ["prefix_reuse='mine'", "owner", "all"]),
        ({"weights": "int3"}, ["weights='int3'", "int4"]),
    ],
)
def test_a_bad_argument_of_an_engine(given: dict[str, Any], names: list[str], folder: str) -> None:
    with pytest.raises(ValueError) as raised:
        Engine.from_pretrained(folder, **given)
    assert not missing(names, str(raised.value))


# Python: what an engine is asked for, and what the ValueError contains.

GIVEN: list[tuple[dict[str, Any], list[str]]] = [
    ({"prompt": ""}, ["prompt"]),
    ({"prompt": []}, ["prompt"]),
    ({"prompt": [3, VOCAB_SIZE]}, [str(VOCAB_SIZE), str(LARGEST_ID)]),
    ({"prompt": [-1]}, ["-1"]),
    ({"prompt": [1.5]}, ["1.5"]),
    ({"prompt": ["a"]}, ["'a'"]),
    ({"prompt": [True]}, ["True"]),
    ({"prompt": "a\ud800b"}, ["character 1"]),
    ({"prompt": [5] * CONTEXT}, ["prompt", str(CONTEXT)]),
    ({"prompt": "x" * (CONTEXT + 5)}, ["prompt", str(CONTEXT + 5), str(CONTEXT)]),
    ({"prompt": [5] * 10, "stopping": Stopping(CONTEXT)}, [f"max_new_tokens={CONTEXT}", "10", str(CONTEXT - 10)]),
    ({"stopping": Stopping(5), "sampling": Sampling(min_new_tokens=6)}, ["min_new_tokens=6", "max_new_tokens=5"]),
    ({"stopping": Stopping(0)}, ["max_new_tokens=0"]),
    ({"stopping": Stopping(-3)}, ["max_new_tokens=-3"]),
    ({"stopping": Stopping(stop=["x", ""])}, ["stop"]),
    ({"stopping": Stopping(stop_token_ids=[3, -1])}, ["stop_token_ids", "-1", str(LARGEST_ID)]),
    ({"stopping": Stopping(stop_token_ids=[VOCAB_SIZE])}, ["stop_token_ids", str(VOCAB_SIZE)]),
    ({"decode": Beam(), "temperature": 0.7}, ["temperature=0.7", "beam"]),
    ({"decode": Beam(), "repetition_penalty": 1.2}, ["repetition_penalty=1.2", "beam"]),
    ({"decode": Beam(), "logit_bias": {5: 1.0}}, ["logit_bias", "beam"]),
    ({"decode": Beam(), "bad_words": [[5]]}, ["bad_words", "beam"]),
    ({"decode": Beam(), "allowed_token_ids": [5]}, ["allowed_token_ids", "beam"]),
    ({"decode": Beam(), "logprobs": 1}, ["logprobs", "beam"]),
    ({"decode": Beam(), "stopping": Stopping(4, stop=["x"])}, ["stop", "'x'", "beam"]),
    ({"decode": BestOf(), "temperature": 0.0}, ["temperature=0", "best_of"]),
    ({"decode": BestOf(), "temperature": 0.8, "prompt_logprobs": 1}, ["prompt_logprobs", "best_of"]),
    ({"decode": BestOf(), "temperature": 0.8, "trace": True}, ["trace", "best_of", "decode=auto"]),
    ({"grammar": Grammar("xml", "a")}, ["xml"]),
    ({"grammar": Grammar("regex", "a(b")}, ["regex", "a(b"]),
]

SAMPLING: list[tuple[Sampling, list[str]]] = [
    (Sampling(temperature=-0.1), ["temperature=-0.1", "0.0", "100.0"]),
    (Sampling(temperature=math.nan), ["temperature=nan"]),
    (Sampling(temperature=1e-40), ["temperature=1e-40", "temperature=0"]),
    (Sampling(temperature=math.inf), ["temperature=inf"]),
    (Sampling(top_k=-1), ["top_k=-1"]),
    (Sampling(top_p=0.0), ["top_p=0"]),
    (Sampling(top_p=1.1), ["top_p=1.1"]),
    (Sampling(min_p=-1.0), ["min_p=-1.0"]),
    (Sampling(repetition_penalty=0.0), ["repetition_penalty=0.0"]),
    (Sampling(presence_penalty=2.5), ["presence_penalty=2.5", "-2.0", "2.0"]),
    (Sampling(frequency_penalty=-2.5), ["frequency_penalty=-2.5"]),
    (Sampling(no_repeat_ngram=-1), ["no_repeat_ngram=-1"]),
    (Sampling(min_new_tokens=-1), ["min_new_tokens=-1"]),
    (Sampling(seed=-1), ["seed=-1"]),
    (Sampling(seed=LARGEST_SEED + 1), [f"seed={LARGEST_SEED + 1}"]),
    (Sampling(logprobs=21), ["logprobs=21", "20"]),
    (Sampling(logit_bias={VOCAB_SIZE: 1.0}), ["logit_bias", str(VOCAB_SIZE), str(LARGEST_ID)]),
    (Sampling(logit_bias={3: 101.0}), ["logit_bias", "3", "101.0", "100"]),
    (Sampling(logit_bias={3: math.nan}), ["logit_bias", "3", "nan"]),
    (Sampling(bad_words=[[3], []]), ["bad_words"]),
    (Sampling(bad_words=[[3]] * 1001), ["bad_words", "1001", "1000"]),
    (Sampling(bad_words=[[3, VOCAB_SIZE]]), ["bad_words", str(VOCAB_SIZE), str(LARGEST_ID)]),
]

DECODE: list[tuple[DecodingMethod, list[str]]] = [
    (Lookahead(window=0), ["decode.window=0", "lookahead", "1", "128"]),
    (Lookahead(window=129), ["decode.window=129"]),
    (Lookahead(ngram=1), ["decode.ngram=1", "lookahead", "2", "32"]),
    (Lookahead(ngram=33), ["decode.ngram=33"]),
    (Lookahead(guesses=0), ["decode.guesses=0"]),
    (Lookahead(guesses=257), ["decode.guesses=257"]),
    (Lookahead(pool_size=0), ["decode.pool_size=0"]),
    (Lookahead(pool_per_token=0), ["decode.pool_per_token=0"]),
    (Jacobi(0), ["decode.window=0", "jacobi"]),
    (Jacobi("many"), ["decode.window=many", "auto"]),
    (PromptLookup(ngram=1), ["decode.ngram=1", "prompt_lookup"]),
    (Lookahead(128, 32, 200), ["10169", "4096"]),
    (Beam(num_beams=0), ["decode.num_beams=0"]),
    (Beam(num_beams=33), ["decode.num_beams=33", "32"]),
    (Beam(2, num_return_sequences=3), ["num_return_sequences=3", "decode.num_beams=2"]),
    (Beam(early_stopping="soon"), ["decode.early_stopping=soon", "false", "true", "never"]),
    (Beam(best_first=True), ["decode.length_penalty=0"]),
    (BestOf(num_samples=0), ["decode.num_samples=0"]),
    (BestOf(num_samples=33), ["decode.num_samples=33", "32"]),
    (BestOf(ranked_by="length"), ["decode.ranked_by=length", "model", "second"]),
    (BestOf(ranked_by="second"), ["decode.ranked_by=second", "second.path"]),
    (BestOf("contrastive"), ["decode.inner=contrastive", "best_of"]),
    (Contrastive("beam"), ["decode.inner=beam", "contrastive"]),
    (Contrastive(alpha=1.5), ["decode.alpha=1.5"]),
    (Contrastive(weight=-1.0), ["decode.weight=-1.0"]),
    (Contrastive(amateur_temperature=0.0), ["decode.amateur_temperature=0.0"]),
    (Contrastive(weight=3.0, amateur_temperature=2.0), ["decode.amateur_temperature", "decode.weight", "2.0"]),
    (Medusa(verify="typical"), ["decode.verify=typical", "decode.exact=false", "decode.verify=exact"]),
    (Medusa(verify="often"), ["decode.verify=often", "exact", "typical"]),
    (Medusa(epsilon=0.0), ["decode.epsilon=0"]),
    (Medusa(delta=1.5), ["decode.delta=1.5", "1"]),
    (Medusa(delta=math.nan), ["decode.delta=nan"]),
    (Medusa(max_rows=0), ["decode.max_rows=0", "medusa"]),
    (Medusa(candidates=65), ["decode.candidates=65", "medusa", "64"]),
    (BestOf(num_samples=2, num_return_sequences=3), ["decode.num_return_sequences=3", "decode.num_samples=2"]),
    (BestOf(inner="magic"), ["decode.inner=magic", "best_of", "lookahead"]),
    (Contrastive(), ["contrastive", "second.path", "decode.amateur_temperature"]),
    (DraftModel(), ["draft_model", "draft.path", "draft.layers"]),
    (Medusa(), ["medusa", "model.heads"]),
]


def assert_refused(names: list[str], call: Callable[[], object]) -> None:
    with pytest.raises(ValueError) as error:
        call()
    assert missing(names, str(error.value)) == [], error.value


@pytest.mark.parametrize(
    ("given", "names"), GIVEN, ids=[str(row[0])[:50].encode("ascii", "replace").decode() for row in GIVEN]
)
def test_a_bad_request_of_python(given: dict[str, Any], names: list[str], llama: Engine) -> None:
    assert_refused(names, lambda: llama.generate(**{"prompt": "a", **given}))


@pytest.mark.parametrize(("sampling", "names"), SAMPLING, ids=[row[1][0] for row in SAMPLING])
def test_bad_sampling(sampling: Sampling, names: list[str], llama: Engine) -> None:
    """Of a request, and of an engine's defaults."""
    assert_refused(names, lambda: llama.generate("a", sampling=sampling))
    assert_refused(names, lambda: RequestBuilder(llama.checkpoint, sampling=sampling))


@pytest.mark.parametrize(("decode", "names"), DECODE, ids=[repr(row[0]) for row in DECODE])
def test_a_bad_method(decode: DecodingMethod, names: list[str], llama: Engine) -> None:
    """Of a request, and of an engine's defaults."""
    assert_refused(names, lambda: llama.generate("a", decode=decode))
    assert_refused(names, lambda: RequestBuilder(llama.checkpoint, decode))


def test_limits_of_the_engine(llama: Engine) -> None:
    builder = RequestBuilder(llama.checkpoint, Autoregressive(), limits=DecodeLimits(window=4))
    builder.build("a", Lookahead(window=4))
    assert_refused(["decode.window=5", "1", "4"], lambda: builder.build("a", Lookahead(window=5)))


@pytest.mark.parametrize(
    ("settings", "names"), [({"temprature": 0.8}, ["'temprature'", "temperature"]), ({"top_p": 2.0}, ["top_p=2.0"])]
)
def test_bad_keywords(settings: dict[str, Any], names: list[str], llama: Engine) -> None:
    assert_refused(names, lambda: llama.generate("a", **settings))
