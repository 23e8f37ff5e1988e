"""What xgrammar keeps exactly and in time. Knows nothing of tokens.

It ignores keywords of JSON schemas that it does not know, alone or together, so that an answer might not be valid: a
schema must have one of the forms that it keeps.

The forms are those of xgrammar 0.2, found by comparing what it takes with what a validator takes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from lp.grammar.schema_faults import escaped
from lp.grammar.settings import GrammarError

INSTEAD = "; use model.grammar_backend=llguidance"
# xgrammar's time grows with the square of a schema's depth and of its parts.
MOST_DEPTH, MOST_PARTS = 40, 500
# Characters of a regular expression, and the greatest numbers of its repetitions. Within JSON, xgrammar forgets to
# escape what is repeated more than 128 times. Repetitions within each other can take it minutes.
MOST_CHARACTERS = 10_000
MOST_REPEATS, MOST_REPEATS_IN_JSON, MOST_NESTED, MOST_UNBOUNDED = 100_000, 128, 32, 8

OF_TYPE = {
    "string": ({"pattern"}, {"minLength", "maxLength"}, {"format"}),
    "integer": ({"multipleOf"}, {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}),
    "number": ({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"},),
    "array": ({"items", "prefixItems", "minItems", "maxItems"},),
    "object": (
        {"properties", "required", "additionalProperties", "minProperties", "maxProperties"},
        {"patternProperties"},
        {"propertyNames"},
    ),
    "boolean": (),
    "null": (),
}
ALONE = ({"$ref"}, {"anyOf"}, {"allOf"}, {"enum"}, {"const"})
# Keywords that no form has. All others but these and those of the forms say nothing of what a value must be.
UNKNOWN = {
    *("not", "oneOf", "if", "then", "else", "contains", "minContains", "maxContains", "uniqueItems"),
    *("dependentRequired", "dependentSchemas", "dependencies", "unevaluatedItems", "unevaluatedProperties"),
    *("additionalItems", "$dynamicRef", "$recursiveRef"),
}
KNOWN = set().union(*ALONE, *(form for forms in OF_TYPE.values() for form in forms), UNKNOWN)
PYTHON_TYPES = {
    "string": str, "integer": int, "number": (int, float), "array": list, "object": dict, "boolean": bool,
    "null": type(None),
}  # fmt: skip


def check_schema(schema: Any) -> None:
    """Raises GrammarError for the first part of a schema, as a JSON pointer, that xgrammar does not keep."""
    left, num_parts = [("#", schema, 0)], 0
    while left:
        pointer, part, depth = left.pop()
        num_parts += 1
        if depth > MOST_DEPTH or num_parts > MOST_PARTS:
            raise GrammarError(
                f"the json_schema cannot be used at {pointer}: xgrammar is given at most {MOST_PARTS} parts of a "
                f"schema, nested at most {MOST_DEPTH} deep{INSTEAD}"
            )
        if not isinstance(part, dict):
            continue  # xgrammar itself says what is no schema
        if reason := _why_not(part):
            raise GrammarError(f"the json_schema cannot be used at {pointer}: {reason}{INSTEAD}")
        named = part.get("patternProperties")
        for pattern in [part.get("pattern"), *(named if isinstance(named, dict) else ())]:
            if isinstance(pattern, str):
                check_pattern("json_schema", pattern)
        left += ((f"{pointer}/{name}", below, depth + 1) for name, below in _below(part))


def check_pattern(kind: str, text: str) -> None:
    """Raises GrammarError for a regular expression that xgrammar would take wrongly or long. kind: of the grammar."""
    if len(text) > MOST_CHARACTERS:
        raise GrammarError(
            f"the {kind} has a regular expression of {len(text):,} characters; the limit with xgrammar is "
            f"{MOST_CHARACTERS:,}{INSTEAD}"
        )
    repeats, nested = _repetitions(text)
    limit = MOST_REPEATS if kind == "regex" else MOST_REPEATS_IN_JSON
    if repeats > limit or nested > MOST_NESTED:
        raise GrammarError(
            f"the {kind} repeats too much for xgrammar, which is given repetitions of up to {limit:,} times, and of up "
            f"to {MOST_NESTED} times within each other{INSTEAD}"
        )


def check_grammar(text: str) -> None:
    """Raises GrammarError for a grammar that xgrammar would write out at great length."""
    if _repetitions(text)[0] > MOST_REPEATS:
        raise GrammarError(f"the grammar repeats more than {MOST_REPEATS:,} times, the limit with xgrammar{INSTEAD}")


def _repetitions(text: str) -> tuple[int, int]:
    """The greatest number of a repetition, and the greatest product of such numbers within each other; * and + within
    another one count as MOST_UNBOUNDED.
    """
    most = most_nested = last = 1
    groups = [1]  # the greatest product within each open group
    for part in re.finditer(r"\\.|\[(?:\\.|[^\]\\])*\]|\{\s*(\d*)\s*,?\s*(\d*)\s*\}|.", text, re.DOTALL):
        match part[0][0]:
            case "(":
                groups.append(1)
            case ")":
                last = groups.pop() if len(groups) > 1 else 1
            case "{" if part[1] is not None:
                count = max(1, int(part[1][:9] or 0), int(part[2][:9] or 0))
                most, most_nested = max(most, count), max(most_nested, count * last if last > 1 else 1)
                last *= count
            case "*" | "+":
                last *= MOST_UNBOUNDED
            case _:
                last = 1
        groups[-1] = max(groups[-1], last)
    return most, most_nested


def _why_not(part: dict[str, Any]) -> str:
    """Why xgrammar would not keep what this part says of a value; empty if it would."""
    told = set(part) & KNOWN
    if unknown := sorted(told & UNKNOWN):
        return f"xgrammar does not keep {', '.join(unknown)}"
    if "enum" in told or "const" in told:
        values = part["enum"] if isinstance(part.get("enum"), list) else [part.get("const")]
        if "type" in part and not all(_has_type(value, _types(part)) for value in values):
            return "xgrammar does not compare the values of enum and const with the type"
    elif "type" not in part and told and not {"properties", "items"} & told and told not in ALONE:
        return f"xgrammar keeps {', '.join(sorted(told))} only where the type is given"
    if len(part.get("allOf") or ()) > 1:
        return "xgrammar keeps only the first schema of allOf"
    if not isinstance(needed := part.get("required", []), list) or not isinstance(part.get("properties", {}), dict):
        return ""  # xgrammar itself says so
    if unnamed := [name for name in needed if name not in part.get("properties", {})]:
        return f"xgrammar keeps required only for what properties has, not for {json.dumps(unnamed[0])}"
    if "type" in part and told & {"$ref", "anyOf", "allOf"}:
        told.add("type")
    elif told in ALONE:
        return ""
    for types in _types(part) or ("object", "array"):
        own = set().union(*OF_TYPE.get(types, ()))
        if told & own and not any(told & own <= form for form in OF_TYPE[types]):
            return f"xgrammar does not keep {', '.join(sorted(told & own))} together"
    if mixed := told & set().union(*ALONE):
        return f"xgrammar does not keep {', '.join(sorted(mixed))} together with {', '.join(sorted(told - mixed))}"
    return ""


def _types(part: dict[str, Any]) -> list[str]:
    types = part.get("type", [])
    return [name for name in (types if isinstance(types, list) else [types]) if isinstance(name, str)]


def _has_type(value: Any, types: list[str]) -> bool:
    names = ["boolean"] if isinstance(value, bool) else types
    return any(name in types and isinstance(value, PYTHON_TYPES.get(name, ())) for name in names)


def _below(part: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """The schemas directly within a part, with their pointers from there."""
    for keyword in ("properties", "patternProperties", "$defs", "definitions"):
        if isinstance(named := part.get(keyword), dict):
            yield from ((f"{keyword}/{escaped(name)}", below) for name, below in named.items())
    for keyword in ("anyOf", "allOf", "prefixItems"):
        if isinstance(several := part.get(keyword), list):
            yield from ((f"{keyword}/{at}", below) for at, below in enumerate(several))
    for keyword in ("items", "additionalProperties", "propertyNames"):
        if keyword in part:
            yield keyword, part[keyword]
