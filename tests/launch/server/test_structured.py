"""Structured output over HTTP: response_format, guided_* and structured_outputs; what is refused, and how texts end."""

from __future__ import annotations

import json
import re
from typing import Any

import httpx
import jsonschema
import pytest

from lp.grammar import compiler
from lp.model.checkpoint import ModelSettings, load
from tests.launch.server.harness import LIMIT_S, Running, assert_error, eventually, serving
from tests.launch.server.tooling import serving_tools

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "kind": {"enum": ["cat", "dog"]}},
    "required": ["name", "kind"],
    "additionalProperties": False,
}
MESSAGES = [{"role": "user", "content": "fibonacci"}]


def chat(shared: Running, **options: Any) -> httpx.Response:
    body = {"model": shared.model, "messages": MESSAGES, "temperature": 0, "max_tokens": 200, **options}
    return httpx.post(f"{shared.url}/v1/chat/completions", json=body, timeout=LIMIT_S)


def complete(shared: Running, **options: Any) -> httpx.Response:
    body = {"model": shared.model, "prompt": "def ", "temperature": 0, "max_tokens": 60, **options}
    return httpx.post(f"{shared.url}/v1/completions", json=body, timeout=LIMIT_S)


def as_format(schema: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "animal", "schema": schema, "strict": True}}


@pytest.mark.parametrize(
    "options",
    [
        {"response_format": as_format(SCHEMA)},
        {"guided_json": SCHEMA},
        {"guided_json": json.dumps(SCHEMA)},
        {"structured_outputs": {"json": SCHEMA, "regex": None}},
    ],
    ids=["response_format", "guided_json", "guided_json as text", "structured_outputs"],
)
@pytest.mark.parametrize("temperature", [0, 0.9])
def test_a_schema_is_kept(shared: Running, options: dict[str, Any], temperature: float) -> None:
    choice = chat(shared, temperature=temperature, seed=3, **options).json()["choices"][0]
    assert choice["finish_reason"] == "stop" and "stop_reason" not in choice
    jsonschema.validate(json.loads(choice["message"]["content"]), SCHEMA)


@pytest.mark.parametrize(
    "options",
    [{"response_format": as_format(SCHEMA)}, {"guided_choice": ["cat", "dog"]}, {"guided_regex": "[a-f]{3}"}],
    ids=["response_format", "choice", "regex"],
)
def test_a_text_of_a_grammar_is_no_reasoning_that_the_template_begins(checkpoint, options: dict[str, Any]) -> None:
    with serving_tools(checkpoint) as running:
        thinking = {"chat_template_kwargs": {"enable_thinking": True}}
        message = chat(running, **thinking, **options).json()["choices"][0]["message"]
        assert message["content"] and "reasoning_content" not in message


def test_the_openai_client_gets_the_schema_as_a_model(shared: Running) -> None:
    pydantic = pytest.importorskip("pydantic")
    animal = pydantic.create_model("Animal", name=(str, ...), legs=(bool, ...))
    answer = shared.openai().chat.completions.parse(
        model=shared.model, messages=MESSAGES, response_format=animal, temperature=1.2, seed=6, max_tokens=300
    )
    assert isinstance(answer.choices[0].message.parsed, animal) or answer.choices[0].finish_reason == "length"


PERSON = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 8}, "ok": {"type": "boolean"}}}


def test_objects_have_no_other_properties_than_the_schema_names(shared: Running) -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": PERSON}}
    for options in (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON}}},
        {"guided_json": PERSON},
        {"tools": [tool], "tool_choice": {"type": "function", "function": {"name": "f"}}},
    ):
        for seed in range(4):
            choice = chat(shared, temperature=1.5, seed=seed, max_tokens=400, **options).json()["choices"][0]
            assert choice["finish_reason"] == "stop"
            message = choice["message"]
            text = message["content"] or message["tool_calls"][0]["function"]["arguments"]
            jsonschema.validate(json.loads(text), PERSON | {"additionalProperties": False})


def test_a_setting_leaves_objects_open_unless_they_are_strict(checkpoint) -> None:
    whole = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON | {"required": ["x"]}}}
    strict = {**whole, "json_schema": {**whole["json_schema"], "strict": True}}
    open_form = {**PERSON, "additionalProperties": True}
    with serving(checkpoint, open_schemas=True) as running:
        found = [
            chat(running, response_format=form, seed=1, temperature=1.0).json()
            for form in (whole, {"type": "json_schema", "json_schema": {"schema": open_form | {"required": ["x"]}}})
        ]
        assert found[0]["choices"] == found[1]["choices"]
        assert_error(chat(running, response_format=strict), 400, "nsatisfiable", param="response_format")


def test_json_objects(shared: Running) -> None:
    for seed in range(4):
        answer = chat(shared, response_format={"type": "json_object"}, temperature=1.0, seed=seed).json()
        choice = answer["choices"][0]
        assert choice["message"]["content"].startswith("{")
        if choice["finish_reason"] == "stop":
            assert isinstance(json.loads(choice["message"]["content"]), dict)


@pytest.mark.parametrize("field", ["guided", "structured"])
def test_regexes_choices_and_grammars(shared: Running, field: str) -> None:
    def text(kind: str, value: Any) -> str:
        options = {f"guided_{kind}": value} if field == "guided" else {"structured_outputs": {kind: value}}
        choice = complete(shared, **options).json()["choices"][0]
        assert choice["finish_reason"] == "stop"
        return choice["text"]

    assert re.fullmatch("[a-f]{3}-[0-9]{2}", text("regex", "[a-f]{3}-[0-9]{2}"))
    assert text("choice", ["yes", "no", "perhaps"]) in ("yes", "no", "perhaps")
    assert re.fullmatch(r"(\(x\)){1,3}", text("grammar", 'start: pair | pair pair | pair pair pair\npair: "(x)"'))
    assert text("grammar", 'root ::= "up" | "down"') in ("up", "down")


def test_a_stream_has_the_same_text(shared: Running) -> None:
    whole = chat(shared, guided_json=SCHEMA, temperature=0.8, seed=1).json()["choices"][0]
    text, end = "", None
    options = {"guided_json": SCHEMA, "temperature": 0.8, "seed": 1, "stream": True}
    for line in chat(shared, **options).text.splitlines():
        if line.startswith("data: {"):
            choice = json.loads(line.removeprefix("data: "))["choices"][0]
            text, end = text + choice["delta"].get("content", ""), choice["finish_reason"]
    assert (text, end) == (whole["message"]["content"], "stop")


def test_methods_agree(shared: Running) -> None:
    texts = {
        complete(shared, guided_json=SCHEMA, decode={"method": method}, max_tokens=200).json()["choices"][0]["text"]
        for method in ("autoregressive", "auto", "lookahead", "jacobi", "prompt_lookup")
    }
    assert len(texts) == 1


def test_a_text_that_cannot_go_on_says_so(shared: Running) -> None:
    """Only one character may come, and as an n-gram it may not come again; the text must be longer."""
    options = {"guided_regex": "x{20,30}", "no_repeat_ngram": 2}
    choice = complete(shared, **options).json()["choices"][0]
    assert choice["finish_reason"] == "length" and choice["stop_reason"].startswith("dead_end")
    assert 0 < len(choice["text"]) < 20
    chunks = [
        json.loads(line.removeprefix("data: "))
        for line in complete(shared, stream=True, **options).text.splitlines()
        if line.startswith("data: {")
    ]
    assert chunks[-1]["choices"][0]["stop_reason"].startswith("dead_end")


@pytest.mark.parametrize(
    ("options", "param", "words"),
    [
        ({"response_format": {"type": "xml"}}, "response_format", ["json_schema"]),
        ({"response_format": "json_object"}, "response_format", ['must be {"type": "text"}, {"type"']),
        ({"response_format": {"type": "json_schema"}}, "response_format", ["json_schema.schema"]),
        ({"response_format": as_format([1])}, "response_format", ["list"]),
        ({"response_format": as_format({"type": "strin"})}, "response_format", ["at #:", "strin"]),
        (
            {"guided_json": {"properties": {"a": {"items": {"type": 3}}}}},
            "guided_json",
            ["at #/properties/a/items:", "string"],
        ),
        ({"guided_json": {"$ref": "#/$defs/x", "$defs": {"x": {"pattern": "("}}}}, "guided_json", ["#/$defs/x"]),
        ({"guided_json": "{"}, "guided_json", ["cannot be read"]),
        ({"guided_json": {"type": "string", "not": {}}}, "guided_json", ["not"]),
        ({"guided_json": "x" * 300_000}, "guided_json", ["262,144"]),
        ({"guided_regex": "a(b"}, "guided_regex", ["unclosed"]),
        ({"guided_regex": 3}, "guided_regex", ["string"]),
        ({"guided_choice": []}, "guided_choice", ["at least one"]),
        ({"guided_choice": ["a", 1]}, "guided_choice", ["strings"]),
        ({"guided_grammar": "start: missing"}, "guided_grammar", ["missing"]),
        ({"guided_regex": "a", "guided_json": {}}, "guided_regex", ["exclude each other"]),
        ({"structured_outputs": {"json": {}, "regex": "a"}}, "structured_outputs", ["one of"]),
        ({"structured_outputs": {}}, "structured_outputs", ["one of"]),
        ({"structured_outputs": {"xml": "a"}}, "structured_outputs", ["xml"]),
        ({"structured_outputs": {"json": {}, "whitespace_pattern": "x"}}, "structured_outputs", ["whitespace_pattern"]),
    ],
)
def test_what_cannot_be_used_is_refused(shared: Running, options: dict[str, Any], param: str, words: list[str]) -> None:
    assert_error(complete(shared, **options), 400, *words, param=param)
    assert shared.engine.is_idle


def test_fields_that_are_off_change_nothing(shared: Running) -> None:
    off = {"response_format": {"type": "text"}, "guided_json": None, "structured_outputs": None}
    assert complete(shared, **off).json()["choices"] == complete(shared).json()["choices"]


def test_the_vocabulary_is_prepared_when_the_server_starts(checkpoint_folder):
    """It holds the interpreter's lock, and with it all streams, for as long as it takes."""
    checkpoint = load(ModelSettings(str(checkpoint_folder("llama"))))
    assert checkpoint.grammars._compiler is None
    with serving(checkpoint):
        eventually(lambda: checkpoint.grammars._compiler is not None)


def test_a_server_starts_without_a_package_for_grammars(checkpoint_folder, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(compiler, "pick_backend", lambda asked: None)
    with serving(load(ModelSettings(str(checkpoint_folder("llama"))))) as running:
        running.assert_serves()
        answer = running.post("/v1/completions", prompt="a", guided_json={"type": "object"})
        assert answer.status_code == 400 and "pip install" in answer.text
