"""Closes the objects of a JSON schema: they have the properties that it names, and no others.

JSON Schema itself allows any further properties, so a model that may write some may never end. Knows no tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from lp.grammar.matcher import escaped

# An object with one of these says itself which further properties it has.
SAID = ("additionalProperties", "unevaluatedProperties", "patternProperties", "propertyNames", "minProperties")
# What else a value must be: the properties of one object can be named in several of these and beside them.
PARTS = ("allOf", "anyOf", "oneOf", "$ref", "if", "then", "else", "dependentSchemas", "dependencies")
# Where the schemas of other values and of alternatives are.
NAMED = ("properties", "patternProperties", "$defs", "definitions")
OTHERS = ("items", "prefixItems", "additionalProperties")
ALTERNATIVES = ("anyOf", "oneOf")


def closed(schema: Any) -> Any:
    """The schema with `additionalProperties: false` in each object that names properties and does not speak of others.

    Objects whose properties are named in several places, such as the members of allOf, stay as they are: each would
    forbid what the other names.
    """
    shared, found = set[str](), set(_shared(schema))
    while found - shared:
        shared |= found
        found = {more for pointer in found for more in _references(_parts(_at(schema, pointer)))}
    return _closed(schema, "#", shared)


def _closed(schema: Any, pointer: str, shared: set[str]) -> Any:
    """shared: pointers of definitions that are only a part of what an object is."""
    if isinstance(schema, list):
        return [_closed(one, f"{pointer}/{number}", shared) for number, one in enumerate(schema)]
    if not isinstance(schema, dict):
        return schema
    made = dict(schema)
    for key in NAMED:
        if isinstance(named := schema.get(key), dict):
            made[key] = {name: _closed(one, f"{pointer}/{key}/{escaped(name)}", shared) for name, one in named.items()}
    for key in OTHERS:
        if key in schema:
            made[key] = _closed(schema[key], f"{pointer}/{key}", shared)
    if pointer in shared or _has_several(schema):
        return made
    for key in (*ALTERNATIVES, "allOf"):
        if key in schema:
            made[key] = _closed(schema[key], f"{pointer}/{key}", shared)
    if isinstance(schema.get("properties"), dict) and not any(key in schema for key in SAID):
        made["additionalProperties"] = False
    return made


def _has_several(schema: dict[str, Any]) -> bool:
    """Whether properties of one object may be named in several places."""
    members = schema.get("allOf")
    num_members = len(members) if isinstance(members, list) else 0
    return ("properties" in schema) + len(_parts(schema)) + max(0, num_members - 1) > 1


def _parts(schema: Any) -> dict[str, Any]:
    return {key: schema[key] for key in PARTS if key in schema} if isinstance(schema, dict) else {}


def _shared(schema: Any) -> Iterator[str]:
    """The pointers that the parts of an object refer to, wherever there are several."""
    if isinstance(schema, dict) and _has_several(schema):
        yield from _references(_parts(schema))
    for one in schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ():
        yield from _shared(one)


def _references(schema: Any) -> Iterator[str]:
    if isinstance(schema, dict) and isinstance(schema.get("$ref"), str):
        yield schema["$ref"]
    for one in schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ():
        yield from _references(one)


def _at(schema: Any, pointer: str) -> Any:
    """What a pointer within the schema points to; None if there is nothing."""
    if not pointer.startswith("#"):
        return None
    for step in pointer.split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        if isinstance(schema, list) and name.isdecimal() and int(name) < len(schema):
            schema = schema[int(name)]
        else:
            schema = schema.get(name) if isinstance(schema, dict) else None
    return schema
