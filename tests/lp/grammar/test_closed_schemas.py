"""Which objects of a schema are closed, and that a closed schema takes nothing that the schema itself refuses."""

from __future__ import annotations

from typing import Any

import jsonschema
import pytest

from lp import Grammar
from lp.grammar.closed_schemas import closed

NAME = {"type": "object", "properties": {"name": {"type": "string"}}}
AGE = {"type": "object", "properties": {"age": {"type": "integer"}}}
NO_MORE = {"additionalProperties": False}


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        (NAME, NAME | NO_MORE),
        ({"type": "object"}, {"type": "object"}),
        (NAME | {"additionalProperties": True}, NAME | {"additionalProperties": True}),
        (NAME | {"patternProperties": {"^x": AGE}}, NAME | {"patternProperties": {"^x": AGE | NO_MORE}}),
        ({"type": "array", "items": NAME}, {"type": "array", "items": NAME | NO_MORE}),
        ({"anyOf": [NAME, AGE]}, {"anyOf": [NAME | NO_MORE, AGE | NO_MORE]}),
        ({"allOf": [NAME]}, {"allOf": [NAME | NO_MORE]}),
        ({"allOf": [NAME, AGE]}, {"allOf": [NAME, AGE]}),
        (NAME | {"anyOf": [AGE, {}]}, NAME | {"anyOf": [AGE, {}]}),
        ({"$ref": "#/$defs/a", "$defs": {"a": NAME}}, {"$ref": "#/$defs/a", "$defs": {"a": NAME | NO_MORE}}),
        (
            {"allOf": [{"$ref": "#/$defs/a~1b"}, AGE], "$defs": {"a/b": NAME, "c": AGE}},
            {"allOf": [{"$ref": "#/$defs/a~1b"}, AGE], "$defs": {"a/b": NAME, "c": AGE | NO_MORE}},
        ),
        (
            {"allOf": [{"$ref": "#/$defs/a"}, AGE], "$defs": {"a": {"$ref": "#/$defs/b"}, "b": NAME}},
            {"allOf": [{"$ref": "#/$defs/a"}, AGE], "$defs": {"a": {"$ref": "#/$defs/b"}, "b": NAME}},
        ),
        ({"properties": {"properties": NAME}}, {"properties": {"properties": NAME | NO_MORE}, **NO_MORE}),
        ({"not": NAME}, {"not": NAME}),
        ({"enum": [{"properties": {}}]}, {"enum": [{"properties": {}}]}),
        (True, True),
    ],
    ids=str,
)
def test_objects_are_closed_where_nothing_else_names_properties(schema: Any, expected: Any) -> None:
    assert closed(schema) == expected
    assert closed(expected) == expected


@pytest.mark.parametrize("value", [{}, {"name": "a"}, {"age": 1}, {"name": "a", "age": 1}, {"name": 1}, {"b": 1}, 3])
def test_a_closed_schema_takes_nothing_new(value: Any) -> None:
    for schema in (NAME, {"allOf": [NAME, AGE]}, {"anyOf": [NAME, AGE]}, NAME | {"anyOf": [AGE, {"required": ["b"]}]}):
        if jsonschema.Draft202012Validator(closed(schema)).is_valid(value):
            jsonschema.validate(value, schema)


def test_a_grammar_that_is_no_schema_stays_as_it_is() -> None:
    for grammar in (
        Grammar("regex", "a"),
        Grammar.json_object(),
        Grammar.json_schema("{"),
        Grammar.json_schema("[" * 9999),
    ):
        assert grammar.closed() == grammar
    assert Grammar.json_schema(NAME).closed() == Grammar.json_schema(NAME | NO_MORE)
