"""benchmarks.structured: its schemas are schemas, and its figures are those of the answers."""

from __future__ import annotations

from jsonschema import Draft202012Validator

from benchmarks.structured.__main__ import measure, table
from benchmarks.structured.schemas import faults, make_schema
from lp import Engine


def test_figures_of_two_methods(llama: Engine) -> None:
    schemas = [make_schema(seed) for seed in range(3)]
    figures = measure(llama, schemas, ["autoregressive", "auto"], temperature=0.0, max_new_tokens=60)
    plain, auto = figures
    assert plain.rate == plain.free_rate == 1 and auto.rate > auto.free_rate and auto.accepted
    assert all(one.same == one.answers == len(schemas) and one.valid == one.ended for one in figures)
    assert 0 < auto.mask_s + auto.draft_s < auto.seconds
    assert len(table(figures).splitlines()) == 4


def test_schemas_are_of_many_kinds() -> None:
    made = [make_schema(seed) for seed in range(300)]
    for schema in made:
        Draft202012Validator.check_schema(schema)
    text = repr(made)
    kinds = ("enum", "const", "$ref", "anyOf", "format", "pattern", "minimum", "exclusiveMinimum", "minItems",
             "prefixItems", "maxLength", "null", "maxProperties", "description")  # fmt: skip
    assert all(f"'{kind}'" in text for kind in kinds)
    assert len({repr(schema) for schema in made}) == len(made) and made[5] == make_schema(5)


def test_faults_are_found() -> None:
    schema = {"type": "object", "properties": {"at": {"type": "string", "format": "date-time"}}}
    assert not faults(schema, {"at": "2026-11-22T10:00:00Z"})
    assert faults(schema, {"at": "2026-02-30T10:00:00Z"}) and faults(schema, {"at": "2026-11-22T25:00:00Z"})
