"""The tables of the HTTP API, from the OpenAPI document that the server describes itself with."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI

from launch.server.app import ROUTERS, describe

_REFERENCE = "#/components/schemas/"
# What the body of each route is described under.
_METHODS = ("get", "post", "delete")


def document() -> dict[str, Any]:
    """The OpenAPI document of a server; no model is loaded."""
    app = FastAPI(title="lookahead-parallel", docs_url=None, redoc_url=None)
    for router in ROUTERS:
        app.include_router(router)
    describe(app, ROUTERS, needs_key=False)
    return app.openapi()


def all_routes() -> str:
    """A table of routes, and the fields of each body."""
    found = document()
    operations = [
        (path, method, operation)
        for path, item in found["paths"].items()
        for method in _METHODS
        if (operation := item.get(method))
    ]
    parts = ["## Routes", "", "| route | what it does |", "|---|---|"]
    for path, method, operation in operations:
        body = _body_name(operation)
        link = f" Body: [`{body}`](#{body.lower()})." if body else ""
        parts.append(f"| `{method.upper()} {path}` | {_sentence(operation)}{link} |")
    schemas = found["components"]["schemas"]
    bodies = list(dict.fromkeys(name for _, _, operation in operations if (name := _body_name(operation))))
    parts += ["", "## Bodies", ""]
    for name in bodies:
        parts += [f"### {name}", "", *_fields(schemas[name], schemas), ""]
    others = sorted(_reached(bodies, schemas) - set(bodies))
    parts += ["## Parts of bodies", ""]
    for name in others:
        parts += [f"### {name}", "", *_fields(schemas[name], schemas), ""]
    return "\n".join(parts)


def _body_name(operation: dict[str, Any]) -> str:
    content = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
    return content.get("schema", {}).get("$ref", "").removeprefix(_REFERENCE)


def _sentence(operation: dict[str, Any]) -> str:
    text = " ".join((operation.get("description") or operation.get("summary") or "").split())
    return text.replace("|", "\\|") + ("" if text.endswith(".") else ".")


def _fields(schema: dict[str, Any], schemas: dict[str, Any]) -> list[str]:
    described = " ".join(schema.get("description", "").split())
    required = schema.get("required", [])
    rows = [
        f"| `{name}` | {_kind(field)} | {_default(name, field, required)} |"
        for name, field in schema.get("properties", {}).items()
    ]
    table = ["| field | type | default |", "|---|---|---|", *rows] if rows else []
    return [*([described, ""] if described else []), *table]


def _default(name: str, field: dict[str, Any], required: list[str]) -> str:
    if name in required:
        return "must be given"
    value = field.get("default")
    return "" if value is None else f"`{value}`".replace("True", "true").replace("False", "false")


def _kind(field: dict[str, Any]) -> str:
    if reference := field.get("$ref"):
        name = reference.removeprefix(_REFERENCE)
        return f"[{name}](#{name.lower()})"
    if "const" in field:
        return f"`{field['const']}`"
    if "enum" in field:
        return " or ".join(f"`{value}`" for value in field["enum"])
    if several := field.get("anyOf") or field.get("oneOf"):
        kinds = dict.fromkeys(_kind(one) for one in several if one.get("type") != "null")
        return " or ".join(kinds)
    if field.get("type") == "array":
        return f"list of {_kind(field.get('items', {}))}"
    return str(field.get("type", "any value"))


def _reached(names: list[str], schemas: dict[str, Any]) -> set[str]:
    """The schemas that these name, and those that they name in turn."""
    found: set[str] = set()
    ahead = list(names)
    while ahead:
        name = ahead.pop()
        if name not in found and name in schemas:
            found.add(name)
            ahead += _references(schemas[name])
    return found


def _references(value: Any) -> list[str]:
    if isinstance(value, dict):
        own = [str(value["$ref"]).removeprefix(_REFERENCE)] if "$ref" in value else []
        return own + [name for inner in value.values() for name in _references(inner)]
    return [name for inner in value for name in _references(inner)] if isinstance(value, list) else []
