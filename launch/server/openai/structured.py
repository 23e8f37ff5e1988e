"""Structured output: what the text of an answer must be, in the forms of OpenAI's API and of vLLM.

    response_format      {"type": "json_object"} or {"type": "json_schema", "json_schema": {"schema": {...}}} (OpenAI)
    structured_outputs   {"json": {...}}, or regex, choice, grammar or json_object (vLLM)
    guided_json          a schema; guided_regex, guided_choice, guided_grammar: likewise (vLLM, older)

A request has one of them at most. Every schema is kept strictly, whatever `strict` says.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator

from launch.server import errors
from launch.server.bodies import refused
from launch.server.errors import ApiError
from lp.grammar.settings import Grammar, GrammarError

# Constraints of `structured_outputs`. Its other keys concern a backend's details, and change nothing if they are off.
CONSTRAINTS = ("json", "regex", "choice", "grammar", "json_object")
DETAILS = ("disable_any_whitespace", "disable_additional_properties", "whitespace_pattern", "structural_tag")


def _schema(value: Any) -> Grammar:
    if not isinstance(value, dict | str | bool):
        raise GrammarError(f"a JSON schema must be an object, not {type(value).__name__}")
    return Grammar.json_schema(value)


def _of_kind(kind: str, value: Any) -> Grammar:
    """The grammar of a constraint of vLLM's, by its name. Raises GrammarError."""
    match kind, value:
        case "json", _:
            return _schema(value)
        case "json_object", True:
            return Grammar.json_object()
        case "choice", [*texts]:
            return Grammar.choice(texts)
        case "regex", str():
            return Grammar("regex", value)
        case "grammar", str():
            return Grammar("grammar", value)
    raise GrammarError(f"{kind} must be {'a list of strings' if kind == 'choice' else 'a string'}")


def _checked(grammar: Grammar) -> Grammar:
    grammar.check()
    return grammar


def _response_format(value: Any) -> Grammar | None:
    match value:
        case None | {"type": "text"}:
            return None
        case Grammar():
            return value
        case {"type": "json_object"}:
            return Grammar.json_object()
        case {"type": "json_schema", "json_schema": {"schema": schema}}:
            return _read("json_schema.schema", lambda: _checked(_schema(schema)))
        case {"type": "json_schema"}:
            raise refused('response_format of type "json_schema" needs the schema as json_schema.schema')
    raise refused('response_format must be {"type": "text"}, {"type": "json_object"} or of type "json_schema"')


def _structured_outputs(value: Any) -> Grammar | None:
    if value is None or isinstance(value, Grammar):
        return value
    if not isinstance(value, dict):
        raise refused("structured_outputs must be an object with one of json, regex, choice, grammar and json_object")
    for key, one in value.items():
        if key not in (*CONSTRAINTS, *DETAILS):
            raise refused("structured_outputs.{key} is not known; leave it out", key=key)
        if key in DETAILS and one not in (None, False):
            raise refused("structured_outputs.{key} is not supported by this server; leave it out", key=key)
    given = {key: value[key] for key in CONSTRAINTS if value.get(key) not in (None, False)}
    if len(given) != 1:
        raise refused("structured_outputs must have one of json, regex, choice, grammar and json_object")
    ((kind, one),) = given.items()
    return _read(kind, lambda: _checked(_of_kind(kind, one)))


def _guided(kind: str) -> BeforeValidator:
    def read(value: Any) -> Grammar | None:
        if value is None or isinstance(value, Grammar):
            return value
        return _read("", lambda: _checked(_of_kind(kind, value)))

    return BeforeValidator(read)


def _read(where: str, read: Any) -> Grammar:
    try:
        return read()
    except GrammarError as error:
        raise refused("{where}{reason}", where=where and f"{where}: ", reason=str(error)) from None


class StructuredBody(BaseModel):
    """The fields of a body that say what the text must be. Each is a Grammar once it is read."""

    response_format: Annotated[Any, BeforeValidator(_response_format)] = None
    structured_outputs: Annotated[Any, BeforeValidator(_structured_outputs)] = None
    guided_json: Annotated[Any, _guided("json")] = None
    guided_regex: Annotated[Any, _guided("regex")] = None
    guided_choice: Annotated[Any, _guided("choice")] = None
    guided_grammar: Annotated[Any, _guided("grammar")] = None
    guided_decoding_backend: Any = None
    guided_whitespace_pattern: None = None


FIELDS = frozenset(StructuredBody.model_fields)


def given(body: StructuredBody) -> dict[str, Grammar]:
    """The grammars of a body, by their fields."""
    found = {name: getattr(body, name) for name in StructuredBody.model_fields}
    return {name: value for name, value in found.items() if isinstance(value, Grammar)}


def grammar_of(body: StructuredBody) -> Grammar | None:
    """What the text must be; None if it may be anything. Raises ApiError for more than one constraint."""
    found = given(body)
    if len(found) > 1:
        names = list(found)
        raise errors.bad_request(f"{' and '.join(names)} exclude each other; send one of them", param=names[-1])
    return next(iter(found.values()), None)


def refusal(error: GrammarError, body: StructuredBody) -> ApiError:
    """The error of a grammar that cannot be compiled, under the name of its field."""
    name = next(iter(given(body)), None)
    return errors.bad_request(f"{name}: {error}" if name else str(error), param=name, code="invalid_grammar")
