"""Fields of llama.cpp's, Ollama's, vLLM's and older OpenAI clients: what they mean, and what is said of the others."""

from __future__ import annotations

import json
import logging
from typing import Any

import httpx
import pytest

from launch.server.foreign_fields import IGNORED
from lp.model.checkpoint import ModelSettings, load
from tests.launch.server.checkpoint import make_tokenizer, write
from tests.launch.server.harness import Running, assert_error, serving

MESSAGES = [{"role": "user", "content": "fibonacci"}]


def complete(running: Running, **body: Any) -> httpx.Response:
    answer = running.post("/v1/completions", **{"prompt": "def f(", "max_tokens": 12, "temperature": 0, **body})
    assert answer.status_code == 200, answer.text
    return answer


def choice(running: Running, **body: Any) -> dict[str, Any]:
    return complete(running, **body).json()["choices"][0]


def chat(running: Running, **body: Any) -> httpx.Response:
    return running.post("/v1/chat/completions", **{"messages": MESSAGES, "max_tokens": 60, "temperature": 0, **body})


def test_unknown_fields_are_named_in_a_header_and_in_the_log(checkpoint, caplog: pytest.LogCaptureFixture):
    with serving(checkpoint) as running, caplog.at_level(logging.WARNING, "lookahead"):
        plain = complete(running)
        assert "warning" not in plain.headers
        for _ in range(2):
            answer = complete(running, **dict.fromkeys(IGNORED, "x"), frobnicate=1, temprature=0.5, nothing=None)
            assert answer.json()["choices"] == plain.json()["choices"]
            told = answer.headers["warning"]
            assert told.startswith('299 - "ignored fields: ') and told.endswith('"') and told.count('"') == 2
        lines = [record.getMessage() for record in caplog.records if "ignored fields" in record.getMessage()]
        assert len(lines) == 1 and "server.unknown_fields=refuse" in lines[0]
        short = complete(running, frobnicate=1, temprature=0.5, reasoning_effort="low").headers["warning"]
        assert "frobnicate, temprature (did you mean temperature?), reasoning_effort (use chat_template" in short


def test_any_name_fits_into_the_header(shared: Running):
    answer = complete(shared, **{'a\n\r"\\ü' * 5000: 1, **{f"x{number}": 1 for number in range(500)}})
    assert len(answer.headers["warning"]) < 1000 and "489 more" in answer.headers["warning"]


def test_every_route_warns(shared: Running):
    for path, body in {
        "/v1/chat/completions": {"messages": MESSAGES},
        "/v1/responses": {"input": "a"},
        "/v1/messages": {"messages": MESSAGES, "max_tokens": 2},
        "/tokenize": {"prompt": "a"},
    }.items():
        answer = shared.post(path, **body, frobnicate=1)
        assert answer.status_code == 200 and "frobnicate" in answer.headers["warning"], answer.text


def test_a_setting_refuses_unknown_fields(checkpoint):
    with serving(checkpoint, unknown_fields="refuse") as running:
        for field, words in {"frobnicate": "leave it out", "temprature": "did you mean temperature?"}.items():
            answer = running.post("/v1/completions", prompt="a", **{field: 1})
            assert_error(answer, 400, f"{field} is not a field that this server knows", words, param=field)
        assert "warning" not in complete(running, frobnicate=None).headers


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ({"repeat_penalty": 1.7}, {"repetition_penalty": 1.7}),
        ({"n_predict": 5, "max_tokens": None}, {"max_tokens": 5}),
        ({"no_repeat_ngram_size": 1}, {"no_repeat_ngram": 1}),
        ({"grammar": 'root ::= "up" | "down"'}, {"guided_grammar": 'root ::= "up" | "down"'}),
        ({"json_schema": {"enum": [1, 2]}}, {"guided_json": {"enum": [1, 2]}}),
        ({"priority": 0}, {}),
    ],
    ids=str,
)
def test_fields_have_the_names_of_other_servers(shared: Running, theirs: dict[str, Any], ours: dict[str, Any]):
    given = {name: value for name, value in theirs.items() if value is not None}
    body = {"prompt": "def f(", "temperature": 0, **({} if "n_predict" in theirs else {"max_tokens": 12}), **given}
    answer = shared.post("/v1/completions", **body)
    assert answer.status_code == 200 and "warning" not in answer.headers, answer.text
    assert answer.json()["choices"][0]["text"] == choice(shared, **ours)["text"]
    if ours:
        assert choice(shared, **ours)["text"] != choice(shared)["text"]


GBNF = r"""
# llama.cpp's own notation
root   ::= item ("," ws item){1,3} end-mark?
item   ::= "\"" [a-zA-Z_] [^"\\\x7F\x00-\x1F]{0,4} "\"" | number
number ::= "-"? ("0" | [1-9] [0-9]{0,2})
ws     ::= | " "
end-mark ::= [.!]
"""


def test_gbnf_grammars(shared: Running):
    import re

    item = r'("[a-zA-Z_][^"\\\x7f\x00-\x1f]{0,4}"|-?(0|[1-9][0-9]{0,2}))'
    for seed in range(4):
        found = choice(shared, grammar=GBNF, max_tokens=100, temperature=1.3, seed=seed)
        assert found["finish_reason"] == "stop"
        assert re.fullmatch(rf"{item}(, ?{item}){{1,3}}[.!]?", found["text"]), found["text"]


def test_only_allowed_tokens_come(shared: Running):
    tokens = shared.post("/tokenize", prompt="abc").json()["tokens"]
    found = choice(shared, allowed_token_ids=tokens, temperature=1, seed=1, return_tokens_as_token_ids=True, logprobs=0)
    assert set(found["logprobs"]["tokens"]) <= {f"token_id:{token}" for token in tokens}
    texts = {
        choice(shared, allowed_token_ids=tokens, bad_words=["ab", "b"], decode={"method": method})["text"]
        for method in ("autoregressive", "auto", "lookahead", "jacobi", "prompt_lookup")
    }
    (text,) = texts
    assert set(text) <= set("ac")


def test_bad_words_do_not_come(shared: Running):
    text = choice(shared)["text"]
    word = text[2:6]
    found = choice(shared, bad_words=[word, *text[:1]])["text"]
    assert word not in found and not found.startswith(text[0])
    first = shared.post("/tokenize", prompt=text[:1]).json()["tokens"]
    assert not choice(shared, bad_words=[first])["text"].startswith(text[0])


def test_a_text_may_have_its_stop_string(shared: Running):
    whole = choice(shared, max_tokens=40)["text"]
    stop = whole[5:8]
    end = whole.index(stop)
    assert choice(shared, stop=stop, max_tokens=40)["text"] == whole[:end]
    included: dict[str, Any] = {"max_tokens": 40, "include_stop_str_in_output": True}
    found = choice(shared, stop=stop, **included)
    assert found["text"] == whole[: end + 3] and found["finish_reason"] == "stop"
    streamed = ""
    for line in complete(shared, stop=stop, stream=True, **included).text.splitlines():
        if line.startswith("data: {"):
            streamed += json.loads(line.removeprefix("data: "))["choices"][0]["text"]
    assert streamed == found["text"]
    plain = shared.post("/v1/messages", messages=MESSAGES, temperature=0, max_tokens=40).json()["content"][0]["text"]
    body = {"messages": MESSAGES, "temperature": 0, "stop_sequences": [plain[3:5]], **included}
    message = shared.post("/v1/messages", **body).json()
    assert (message["stop_reason"], message["stop_sequence"]) == ("stop_sequence", plain[3:5])
    assert message["content"][0]["text"] == plain[: plain.index(plain[3:5]) + 2]


def test_prompts_are_truncated_from_the_left(shared: Running):
    tokens = shared.post("/tokenize", prompt="def fibonacci(n): return").json()["tokens"]
    cut = choice(shared, prompt="def fibonacci(n): return", truncate_prompt_tokens=3, echo=True)
    assert cut["text"] == choice(shared, prompt=tokens[-3:], echo=True)["text"]
    long = complete(shared, prompt=[5] * 5000, truncate_prompt_tokens=-1, max_tokens=4).json()
    assert long["usage"]["prompt_tokens"] == 1020
    answer = chat(shared, truncate_prompt_tokens=4, max_tokens=2).json()
    assert answer["usage"]["prompt_tokens"] == 4


def test_a_prompt_alone_is_echoed(shared: Running):
    found = choice(shared, max_tokens=0, echo=True, logprobs=0)
    assert found["text"] == "def f(" and found["finish_reason"] == "length"


def test_functions_are_tools_of_an_older_form(shared: Running):
    function = {
        "name": "f",
        "parameters": {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]},
    }
    answer = chat(shared, functions=[function], function_call={"name": "f"}).json()["choices"][0]
    call = answer["message"]["function_call"]
    assert call["name"] == "f" and isinstance(json.loads(call["arguments"])["ok"], bool)
    assert "tool_calls" not in answer["message"] and answer["finish_reason"] == "stop"
    events = chat(shared, functions=[function], function_call={"name": "f"}, stream=True).text.splitlines()
    deltas = [
        json.loads(line.removeprefix("data: "))["choices"][0]["delta"] for line in events if line.startswith("data: {")
    ]
    pieces = [delta["function_call"] for delta in deltas if "function_call" in delta]
    assert "".join(piece.get("arguments", "") for piece in pieces) == call["arguments"]
    assert [piece["name"] for piece in pieces if "name" in piece] == ["f"]
    back = [
        *MESSAGES,
        {"role": "assistant", "content": None, "function_call": call},
        {"role": "function", "name": "f", "content": "5"},
    ]
    assert chat(shared, messages=back, functions=[function]).status_code == 200
    assert_error(chat(shared, functions=[function], function_call={"name": "g"}), 400, "names g")
    assert_error(chat(shared, function_call=3), 400, "function_call must be", param="function_call")


def test_a_suffix_is_filled_in_before_where_the_tokenizer_can(tmp_path_factory: pytest.TempPathFactory):
    folder = write(tmp_path_factory.mktemp("infilling") / "tiny-llama")
    tokenizer = make_tokenizer(None)
    marks = ["<fim_prefix>", "<fim_suffix>", "<fim_middle>"]
    tokenizer.backend_tokenizer.add_special_tokens(marks)
    ids = [tokenizer.convert_tokens_to_ids(mark) for mark in marks]
    assert ids
    # The model has as many embeddings as the tokenizer had tokens: three of them get other names.
    text = (folder / "tokenizer.json").read_text(encoding="utf-8")
    data = json.loads(text)
    vocabulary = data["model"]["vocab"]
    names = [name for name, number in vocabulary.items() if number >= len(vocabulary) - 3]
    data["model"]["merges"] = [merge for merge in data["model"]["merges"] if "".join(merge) not in names]
    for name, mark in zip(names, marks, strict=True):
        vocabulary[mark] = vocabulary.pop(name)
    (folder / "tokenizer.json").write_text(json.dumps(data), encoding="utf-8")
    with serving(load(ModelSettings(path=str(folder), device="cpu"))) as running:
        tokens = {word: running.post("/tokenize", prompt=word).json()["tokens"] for word in ("def f(", "return n")}
        before, between, after = (vocabulary[mark] for mark in marks)
        prompt = [before, *tokens["def f("], between, *tokens["return n"], after]
        filled = complete(running, suffix="return n", decode={"method": "autoregressive"}).json()
        assert filled["usage"]["prompt_tokens"] == len(prompt)
        assert filled["choices"][0]["text"] == choice(running, prompt=prompt)["text"]
        assert complete(running, prompt="", suffix="return n").json()["usage"]["prompt_tokens"] == len(prompt) - len(
            tokens["def f("]
        )
