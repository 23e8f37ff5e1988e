"""JSON schemas made at random, of the kinds that jsonschemabench (arXiv 2501.10868) has collected from services.

Types, enums and constants, nested objects, arrays with bounds, references, alternatives, formats, patterns, and numbers
with bounds. Strings and arrays are short, so that an answer may end within a few hundred tokens.
"""

from __future__ import annotations

import random
import re
from datetime import datetime
from typing import Any

from jsonschema import Draft202012Validator, FormatChecker

Schema = dict[str, Any]
NAMES = (
    "id", "name", "title", "age", "email", "status", "tags", "price", "address", "city", "country", "created_at",
    "is_active", "count", "items", "owner", "color", "size", "version", "notes",
)  # fmt: skip
WORDS = ("red", "green", "blue", "open", "closed", "pending", "small", "large", "high", "low", "admin", "guest")
FORMATS = ("date", "time", "date-time", "email", "ipv4", "uuid")
PATTERNS = ("^[0-9]{5}$", "^[A-Z]{2,3}-[0-9]{1,4}$", "^(yes|no)$", "^#[0-9a-f]{6}$", "^v[0-9]\\.[0-9]$", "^[a-z]+$")
MOST_DEPTH = 3


def make_schema(seed: int) -> Schema:
    """The schema with this number: an object, with definitions if it has references."""
    maker = _Maker(random.Random(seed))
    schema = maker.object(0)
    if maker.shared:
        schema["$defs"] = maker.shared
    return schema


class _Maker:
    """Makes one schema. shared: what its references point to, by name."""

    def __init__(self, rng: random.Random):
        self.rng = rng
        self.shared: dict[str, Schema] = {}

    def value(self, depth: int) -> Schema:
        """The schema of some value. depth: of objects and arrays around it."""
        kinds = [self.string, self.string, self.pattern, self.format, self.integer, self.integer, self.number,
                 self.boolean, self.enum, self.enum, self.constant, self.nullable]  # fmt: skip
        if depth < MOST_DEPTH:
            kinds += [self.array, self.array, self.inner_object, self.reference, self.alternatives]
        made = self.rng.choice(kinds)(depth)
        if self.rng.random() < 0.2 and "$ref" not in made:
            made["description"] = f"The {self.rng.choice(NAMES)}."
        return made

    def object(self, depth: int) -> Schema:
        names = self.rng.sample(NAMES, self.rng.randrange(1, 6 if depth == 0 else 4))
        schema: Schema = {"type": "object", "properties": {name: self.value(depth + 1) for name in names}}
        schema["required"] = [name for name in names if self.rng.random() < 0.8]
        schema["additionalProperties"] = False
        return schema

    def inner_object(self, depth: int) -> Schema:
        if self.rng.random() < 0.15:
            return {"type": "object", "additionalProperties": self.integer(depth), "maxProperties": 3}
        return self.object(depth)

    def string(self, depth: int) -> Schema:
        least = self.rng.choice([0, 0, 1, 3])
        return {"type": "string", "minLength": least, "maxLength": least + self.rng.randrange(1, 20)}

    def pattern(self, depth: int) -> Schema:
        schema: Schema = {"type": "string", "pattern": self.rng.choice(PATTERNS)}
        return {**schema, "maxLength": 12} if schema["pattern"].endswith("+$") else schema

    def format(self, depth: int) -> Schema:
        return {"type": "string", "format": self.rng.choice(FORMATS)}

    def integer(self, depth: int) -> Schema:
        least = self.rng.randrange(-50, 100)
        bounds: Schema = {"minimum": least, "maximum": least + self.rng.choice([0, 3, 77, 5000])}
        if self.rng.random() < 0.3:
            bounds = {"exclusiveMinimum": least, "exclusiveMaximum": least + self.rng.randrange(2, 200)}
        return {"type": "integer", **bounds}

    def number(self, depth: int) -> Schema:
        least = round(self.rng.uniform(-10, 10), 1)
        return {"type": "number", "minimum": least, "maximum": round(least + self.rng.choice([0.5, 8, 300]), 1)}

    def boolean(self, depth: int) -> Schema:
        return {"type": "boolean"}

    def enum(self, depth: int) -> Schema:
        values: list[Any] = self.rng.sample(WORDS, self.rng.randrange(1, 6))
        return {"enum": values + self.rng.choice([[], [], [None], [7, -1.5], [True]])}

    def constant(self, depth: int) -> Schema:
        return {"const": self.rng.choice([*WORDS, 3, False, None, {"a": [1, 2]}])}

    def nullable(self, depth: int) -> Schema:
        return {"type": [self.rng.choice(["boolean", "integer"]), "null"]}

    def array(self, depth: int) -> Schema:
        least = self.rng.randrange(3)
        schema: Schema = {"type": "array", "minItems": least, "maxItems": least + self.rng.randrange(1, 4)}
        if self.rng.random() < 0.2:
            first = [self.value(depth + 1) for _ in range(2)]
            return {"type": "array", "prefixItems": first, "items": False, "minItems": 2}
        return {**schema, "items": self.value(depth + 1)}

    def reference(self, depth: int) -> Schema:
        name = f"{self.rng.choice(NAMES)}_type"
        if name not in self.shared:
            self.shared[name] = self.object(MOST_DEPTH - 1)
        return {"$ref": f"#/$defs/{name}"}

    def alternatives(self, depth: int) -> Schema:
        return {"anyOf": [self.value(depth + 1) for _ in range(self.rng.randrange(2, 4))]}


FORMAT_CHECKER = FormatChecker()


@FORMAT_CHECKER.checks("time")
def _is_time(value: object) -> bool:
    """RFC 3339, section 5.6."""
    clock = r"([01]\d|2[0-3]):[0-5]\d:([0-5]\d|60)(\.\d+)?([zZ]|[+-]([01]\d|2[0-3]):[0-5]\d)"
    return not isinstance(value, str) or re.fullmatch(clock, value) is not None


@FORMAT_CHECKER.checks("date-time")
def _is_date_time(value: object) -> bool:
    if not isinstance(value, str):
        return True
    date, _, time = value.upper().partition("T")
    try:
        datetime.strptime(date, "%Y-%m-%d")
    except ValueError:
        return False
    return _is_time(time)


def faults(schema: Schema, value: Any) -> list[str]:
    """What keeps a value from being one of a schema's; formats count."""
    return [error.message for error in Draft202012Validator(schema, format_checker=FORMAT_CHECKER).iter_errors(value)]
