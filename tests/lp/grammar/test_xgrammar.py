"""Grammars by xgrammar: the same texts for every method, valid answers, and clear words for what it does not keep."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from benchmarks.structured.schemas import faults, make_schema
from lp import Auto, Autoregressive, Engine, Grammar, Jacobi, Lookahead, PromptLookup, Sampling
from lp.grammar.compiler import Grammars
from lp.grammar.settings import GrammarBackend, GrammarError
from lp.tree import chain
from tests.models import EOS, VOCAB_SIZE, build_tokenizer
from tests.slow import slow_except

pytest.importorskip("xgrammar", reason="xgrammar is not installed")

METHODS = [Auto(), Auto(rows=24), Lookahead(5, 4, 5), PromptLookup(), Jacobi(6)]
GRAMMARS = [
    Grammar.json_object(),
    Grammar("regex", "(ab|c){3,9}[0-9]*x"),
    Grammar.choice(["return first", "return second", "return"]),
    Grammar("grammar", 'start: "(" start ")" | "x"'),
    Grammar("grammar", 'root ::= "(" root ")" | [a-c]+'),
    Grammar.json_schema(
        {
            "type": "object",
            "properties": {
                "a_long_name": {"enum": ["ä", 1, None]},
                "items": {"type": "array", "items": {"type": "string", "maxLength": 4}, "minItems": 1, "maxItems": 3},
            },
            "required": ["a_long_name", "items"],
            "additionalProperties": False,
        }
    ),
]


@pytest.fixture(scope="module")
def grammars() -> Grammars:
    return Grammars(build_tokenizer(), VOCAB_SIZE, [EOS], GrammarBackend.xgrammar)


@pytest.fixture(scope="module")
def engine(checkpoint_folder: Callable[[str], Any]) -> Engine:
    return Engine.from_pretrained(str(checkpoint_folder("llama")), grammar_backend="xgrammar")


@pytest.mark.parametrize(
    "grammar", slow_except(GRAMMARS, *GRAMMARS[:2]), ids=lambda grammar: grammar.text[:20] or grammar.kind
)
def test_every_method_gives_the_text_of_plain_decoding(grammar: Grammar, engine: Engine) -> None:
    for sampling in (Sampling(temperature=0.0), Sampling(temperature=1.1, top_p=0.9, seed=3)):
        plain = engine.generate(
            "def add", decode=Autoregressive(), sampling=sampling, grammar=grammar, max_new_tokens=40
        )
        assert plain.finish_reason in ("stop", "length") and plain.token_ids
        for decode in METHODS:
            found = engine.generate("def add", decode=decode, sampling=sampling, grammar=grammar, max_new_tokens=40)
            assert (found.token_ids, found.finish_reason) == (plain.token_ids, plain.finish_reason), decode


def test_greedy_text_is_that_of_the_other_package(engine: Engine, llama: Engine) -> None:
    """Where both read a grammar alike, they allow the same tokens."""
    for grammar in [*GRAMMARS[1:3], Grammar("grammar", 'start: "(" start ")" | "x"')]:
        found, expected = (one.generate("def", grammar=grammar, temperature=0.0, max_new_tokens=60).text
                           for one in (engine, llama))  # fmt: skip
        assert found == expected


def test_tokens_that_must_follow_save_steps(engine: Engine) -> None:
    found = engine.generate("x", decode=Auto(rows=8), grammar=GRAMMARS[-1], temperature=0.0, max_new_tokens=60)
    assert found.stats.accepted["grammar"] > 5 and found.stats.tokens_per_step > 1.5


def random_text(grammars: Grammars, grammar: Grammar, rng: random.Random, length: int) -> tuple[str, bool]:
    """A text that keeps a grammar, and whether it has come to its end."""
    state, tokens = grammars.begin(grammar, 1), [5]
    while not state.is_over and len(tokens) < length:
        words = state.masks(chain(tokens[-1:]), tokens).words[0]
        may_follow = np.flatnonzero(np.unpackbits(words.view(np.uint8), bitorder="little")).tolist()
        if EOS in may_follow:
            return build_tokenizer().decode(tokens[1:]), True
        tokens.append(rng.choice(may_follow))
        assert state.push(tokens[-1])
    return build_tokenizer().decode(tokens[1:]), state.is_over


def test_every_answer_that_ends_is_valid(grammars: Grammars) -> None:
    num_ended = num_refused = 0
    for seed in range(120):
        schema = make_schema(seed)
        try:
            text, is_over = random_text(grammars, Grammar.json_schema(schema), random.Random(seed), 400)
        except GrammarError:
            num_refused += 1
            continue
        num_ended += is_over
        if "\N{REPLACEMENT CHARACTER}" not in text:  # bytes that are no text, of which xgrammar counts too few
            assert not is_over or not faults(schema, json.loads(text)), (schema, text)
    assert num_ended > 40 and num_refused < 60


@pytest.mark.parametrize("texts", [['"quoted"', "a\\b"], ["ä€😀", "ab\nc\td"], ["{}", "[a-z]+", "x | y"], ["\x01\x7f"]])
def test_choices_are_taken_literally(texts: list[str], grammars: Grammars) -> None:
    for text in texts:
        state = grammars.begin(Grammar.choice(texts), 1)
        assert all(state.push(token) for token in build_tokenizer().encode(text, add_special_tokens=False))
        assert state.is_over
    assert random_text(grammars, Grammar.choice(texts), random.Random(1), 90)[0] in texts


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"not": {"type": "string"}}, "at #: xgrammar does not keep not; use model.grammar_backend=llguidance"),
        ({"properties": {"a/b": {"oneOf": [{}, {}]}}}, "at #/properties/a~1b: xgrammar does not keep oneOf"),
        ({"type": "array", "uniqueItems": True}, "uniqueItems"),
        ({"anyOf": [{"type": "integer"}], "minimum": 3}, "minimum"),
        ({"type": "object", "anyOf": [{"required": ["a"]}]}, "anyOf together with type"),
        ({"allOf": [{"type": "integer"}, {"minimum": 3}]}, "only the first schema of allOf"),
        ({"type": "object", "required": ["b"]}, 'not for "b"'),
        ({"minLength": 3}, "minLength only where the type is given"),
        ({"type": "string", "pattern": "a", "maxLength": 3}, "maxLength, pattern together"),
        ({"type": ["null", "integer"], "minimum": 3, "multipleOf": 3}, "minimum, multipleOf together"),
        ({"type": "object", "patternProperties": {}, "properties": {}}, "patternProperties, properties together"),
        ({"type": "string", "enum": ["a", 1]}, "compare the values"),
        ({"type": "integer", "const": True}, "compare the values"),
        ({"$ref": "#/$defs/a", "minimum": 3, "$defs": {"a": {}}}, "$ref"),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"if": {}}}}, "at #/$defs/a: xgrammar does not keep if"),
        ({"type": "strin"}, 'Unsupported type "strin"'),
        ({"properties": 5}, "properties must be an object"),
        ({"type": "object", "required": 5, "properties": {}}, "required"),
        ({"$ref": "#/nowhere"}, "Cannot find field nowhere"),
        ([], "Schema should be an object or bool"),
        (False, "cannot accept any value"),
        ({"type": "string", "pattern": "("}, "The parenthesis is not closed"),
        ({"type": "string", "pattern": "a{129}"}, "up to 128 times"),
        ({"properties": {str(number): {} for number in range(600)}}, "at most 500 parts"),
    ],
)  # fmt: skip
def test_schemas_that_it_would_not_keep_are_refused(schema: Any, words: str, grammars: Grammars) -> None:
    with pytest.raises(GrammarError) as caught:
        grammars.compile(Grammar.json_schema(schema))
    assert words in str(caught.value) and "\n" not in str(caught.value) and "cpp" not in str(caught.value)


def test_schemas_that_it_keeps_are_taken(grammars: Grammars) -> None:
    for schema in (
        True, {}, {"title": "x", "description": "y"}, {"enum": [1, "a"], "type": ["integer", "string"]},
        {"type": "integer", "const": 1, "default": 1}, {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/a"}],
        "$defs": {"a": {"type": "string", "pattern": "^a+$"}}}, {"type": ["object", "null"], "properties": {"a": {}}},
        {"type": "array", "prefixItems": [{}], "items": False, "maxItems": 1}, {"type": "integer", "multipleOf": 3},
    ):  # fmt: skip
        grammars.compile(Grammar.json_schema(schema))


@pytest.mark.parametrize(
    ("grammar", "words"),
    [
        (Grammar("regex", "(?=a)b"), "Lookahead is not supported"),
        (Grammar("regex", "("), "not closed"),
        (Grammar("regex", "((.{0,9}x){0,9})"), "up to 32 times within each other"),
        (Grammar("regex", "([a-z]+ ){5}"), "repeats too much"),
        (Grammar("regex", "a{100001}"), "up to 100,000 times"),
        (Grammar("regex", "(" * 20_000), "20,000 characters; the limit with xgrammar is 10,000"),
        (Grammar("grammar", "root ::= ("), "EBNF parser error at line 1"),
        (Grammar("grammar", "start: other"), "other"),
        (Grammar("grammar", 'root ::= "a"{99999999999}'), "repeats more than"),
        (Grammar.json_schema("[" * 100_000), "cannot be read"),
    ],
)
def test_what_it_cannot_read_is_refused(grammar: Grammar, words: str, grammars: Grammars) -> None:
    with pytest.raises(GrammarError) as caught:
        grammars.compile(grammar)
    assert words in str(caught.value) and "\n" not in str(caught.value)


def test_usual_patterns_are_taken(grammars: Grammars) -> None:
    for text in (
        "[0-9a-f]{8}-([0-9a-f]{4}-){3}[0-9a-f]{12}",
        r"\(\d{3}\) [{]\d{3,4}\}{1}",
        "([a-z]+ ){1,4}",
        "(a{9})(b{99})",
    ):
        grammars.compile(Grammar("regex", text))
        grammars.compile(Grammar.json_schema({"type": "string", "pattern": f"^{text}$"}))


def test_strings_of_a_bounded_length_hold_no_control_characters(grammars: Grammars) -> None:
    for schema in ({"type": "string", "maxLength": 500}, {"type": "string", "minLength": 1}):
        for text in ("a\x04", "a\n", 'a"b', "a\\x"):
            state = grammars.begin(Grammar.json_schema(schema), 1)
            tokens = build_tokenizer().encode(f'"{text}"', add_special_tokens=False)
            assert not all(state.push(token) for token in tokens)


def test_a_schema_as_deep_as_python_reads_is_refused(grammars: Grammars) -> None:
    with pytest.raises(GrammarError, match="nested at most 40 deep"):
        grammars.compile(Grammar.json_schema('{"items":' * 300 + "{}" + "}" * 300))
