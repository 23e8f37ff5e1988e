"""What grammars may be, what is refused and with which words, and what is kept."""

from __future__ import annotations

import importlib.util
import json
import threading
from typing import Any

import pytest

from lp import Engine, Grammar
from lp.grammar import compiler, with_llguidance
from lp.grammar.compiler import Grammars, pick_backend
from lp.grammar.settings import MOST_CHARACTERS, GrammarBackend, GrammarError
from lp.request import Request
from parallel.groups.messages import AddRequest, decode_commands, encode_commands
from tests.models import EOS, VOCAB_SIZE, build_tokenizer


@pytest.fixture
def grammars() -> Grammars:
    return Grammars(build_tokenizer(), VOCAB_SIZE, [EOS])


@pytest.mark.parametrize(
    ("grammar", "words"),
    [
        (Grammar("xml", "a"), "kind 'xml' is unknown"),  # type: ignore[arg-type]
        (Grammar("regex"), "the regex is empty"),
        (Grammar("regex", "a" * (MOST_CHARACTERS + 1)), "262,145 characters, more than the limit of 262,144"),
        (Grammar("regex", "(?=a)b"), "look-ahead"),
        (Grammar.choice([]), "at least one"),
        (Grammar.choice(["a"] * 10_001), "10,001 strings; the limit is 10,000"),
        (Grammar("choice", "[" * 100_000), "a list of strings"),
        (Grammar("grammar", "root ::= ("), "cannot be read"),
        (Grammar("grammar", "start: other"), "other"),
        (Grammar.json_schema([]), "must be a JSON object"),
        (Grammar.json_schema("[" * 100_000), "cannot be read"),
        (Grammar.json_schema({"type": "strin"}), "at #: Invalid type: strin"),
        (Grammar.json_schema({"properties": {"a/b": {"minimum": "x"}}}), "at #/properties/a~1b: "),
        (Grammar.json_schema({"anyOf": [{"type": "null"}, {"pattern": "(", "type": "string"}]}), "at #/anyOf/1: "),
        (Grammar.json_schema({"$ref": "#/$defs/a", "$defs": {"a": {"type": 1}}}), "at #/$defs/a: "),
        (Grammar.json_schema({"items": {"$ref": "#/$defs/none"}}), "at #/items: Pointer '/$defs/none' does not exist"),
        (Grammar.json_schema({"$ref": "https://example.com/x"}), "at #: Resource"),
        (Grammar.json_schema({"type": "array", "uniqueItems": True}), "uniqueItems"),
        (Grammar.json_schema({"type": "integer", "minimum": 5, "maximum": 2}), "Unsatisfiable"),
    ],
)
def test_what_cannot_be_used_is_refused(grammar: Grammar, words: str, grammars: Grammars) -> None:
    with pytest.raises(GrammarError) as caught:
        grammars.compile(grammar)
    assert words in str(caught.value) and "\n" not in str(caught.value)


def test_a_request_is_refused_before_anything_runs(llama: Engine) -> None:
    with pytest.raises(ValueError, match="at #/items"):
        llama.generate("a", grammar=Grammar.json_schema({"items": {"type": 0}}))
    assert llama.is_idle


def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(GrammarError, match=r"pip install 'lookahead-parallel\[grammar\]'"):
        Grammars(build_tokenizer(), VOCAB_SIZE, [EOS]).compile(Grammar.json_object())
    for backend in ("llguidance", "xgrammar"):
        with pytest.raises(ValueError, match=rf"grammar_backend={backend} needs .*pip install"):
            Grammars(build_tokenizer(), VOCAB_SIZE, [EOS], GrammarBackend(backend))


@pytest.mark.parametrize(
    ("installed", "picked"),
    [
        (["llguidance", "xgrammar"], "llguidance"),
        (["llguidance"], "llguidance"),
        (["xgrammar"], "xgrammar"),
        ([], None),
    ],
)
def test_auto_takes_llguidance_first(installed: list[str], picked: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name if name in installed else None)
    assert pick_backend(GrammarBackend.auto) == picked
    assert [pick_backend(GrammarBackend(name)) for name in installed] == installed


def test_grammars_are_kept(grammars: Grammars, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    make = with_llguidance._matcher
    monkeypatch.setattr(with_llguidance, "_matcher", lambda *how: (made.append(how), make(*how))[1])
    monkeypatch.setattr(compiler, "MOST_KEPT", 2)
    first, second, third = (Grammar("regex", text) for text in "abc")
    for grammar in (first, first, second, first, third, first, second):
        grammars.compile(grammar)
    assert len(made) == 4  # the second was forgotten


def test_threads_compile_at_the_same_time(grammars: Grammars) -> None:
    found: list[Any] = []

    def work(number: int) -> None:
        state = grammars.begin(Grammar.choice([f"text {number % 3}"]), 1)
        found.append("".join(build_tokenizer().decode([*state.forced(20).sure, *state.forced(20).likely])))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == sorted(f"text {number % 3}" for number in range(12))


def test_a_schema_may_ask_for_other_white_space(llama: Engine) -> None:
    schema = {"type": "array", "items": {"const": 1}, "minItems": 2, "maxItems": 2}
    assert llama.generate("a", grammar=Grammar.json_schema(schema), temperature=0.0).text == "[1, 1]"
    schema["x-guidance"] = {"item_separator": ",", "whitespace_flexible": False}
    assert llama.generate("a", grammar=Grammar.json_schema(schema), temperature=0.0).text == "[1,1]"


def test_a_request_s_grammar_travels_between_processes(llama: Engine) -> None:
    grammar = Grammar.json_schema({"enum": ["ä", "\n"]})
    request = llama.request_builder.build("a", grammar=grammar)
    assert Request.from_dict(json.loads(json.dumps(request.to_dict())), request.decode) == request
    (command,) = decode_commands(encode_commands([AddRequest(request, (3, 4))]))
    assert isinstance(command, AddRequest) and command.request.grammar == grammar
    assert Request.from_dict({**request.to_dict(), "grammar": None}, request.decode).grammar is None
