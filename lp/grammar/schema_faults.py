"""Finds the part of a JSON schema that cannot be compiled. Knows nothing of the compiler."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

# Keywords whose value is a schema, a list of schemas, or an object with schemas as values.
ONE = ("additionalProperties", "items", "contains", "not", "if", "then", "else", "propertyNames", "additionalItems")
SEVERAL = ("anyOf", "oneOf", "allOf", "prefixItems", "items")
NAMED = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
# What references point to: a part is tried together with it.
SHARED = ("$defs", "definitions", "$id", "$schema")
MOST_TRIES = 500


def find_fault(schema: Any, fault: Callable[[Any], str], error: str) -> tuple[str, str]:
    """The JSON pointer of the smallest part that is faulty by itself, such as #/properties/age, and its fault.

    fault: what is wrong with a schema; empty if nothing is. error: the fault of the whole.
    """
    shared = {name: schema[name] for name in SHARED if name in schema} if isinstance(schema, dict) else {}
    pointer, num_tries, is_deeper = "#", 0, True
    while is_deeper:
        is_deeper = False
        for name, part in _parts(schema):
            num_tries += 1
            if num_tries > MOST_TRIES:
                return pointer, error
            # What is shared may be at fault itself: it is tried where it stands.
            found = fault(part if any(name.startswith(f"{key}/") for key in SHARED) else {**shared, **part})
            if found:
                pointer, error, schema, is_deeper = f"{pointer}/{name}", found, part, True
                break
    return pointer, error


def _parts(schema: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """The schemas directly within a schema, those that references point to first, each with its pointer from there."""
    if not isinstance(schema, dict):
        return
    for keyword in (*SHARED, *NAMED):
        if isinstance(named := schema.get(keyword), dict) and keyword in NAMED:
            yield from ((f"{keyword}/{escaped(name)}", part) for name, part in named.items() if isinstance(part, dict))
    for keyword in SEVERAL:
        if isinstance(several := schema.get(keyword), list):
            yield from ((f"{keyword}/{at}", part) for at, part in enumerate(several) if isinstance(part, dict))
    for keyword in ONE:
        if isinstance(one := schema.get(keyword), dict):
            yield keyword, one


def escaped(name: str) -> str:
    return str(name).replace("~", "~0").replace("/", "~1")
