"""What a text may be, as a request says it: plain data that travels between processes. Knows nothing of tokens."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal, get_args

from lp.grammar.closed_schemas import closed

GrammarKind = Literal["json_object", "json_schema", "regex", "choice", "grammar"]
KINDS: tuple[GrammarKind, ...] = get_args(GrammarKind)
# Characters of a grammar's text, and alternatives of a choice.
MOST_CHARACTERS = 1 << 18
MOST_CHOICES = 10_000
# The schema of json_object.
ANY_OBJECT = '{"type": "object"}'


class GrammarBackend(StrEnum):
    """The package that compiles and follows grammars. auto: llguidance, or xgrammar where only that is installed."""

    auto = "auto"
    llguidance = "llguidance"
    xgrammar = "xgrammar"


class GrammarError(ValueError):
    """A grammar that cannot be used; the message is meant for the user and says where it is wrong."""


@dataclass(frozen=True)
class Grammar:
    """What the generated text must be from its first token on. The text ends where nothing more may follow.

    kind, text: json_object is any JSON object, without a text. json_schema is JSON that a schema accepts, the schema's
    JSON as text. regex is a regular expression that matches the whole text. choice is one of several texts, a JSON list
    of strings. grammar is a context-free grammar in Lark's notation, or in GBNF or EBNF as xgrammar reads it.
    """

    kind: GrammarKind
    text: str = ""

    @staticmethod
    def json_object() -> Grammar:
        return Grammar("json_object")

    @staticmethod
    def json_schema(schema: Any) -> Grammar:
        """schema: a JSON value, or its text."""
        return Grammar("json_schema", schema if isinstance(schema, str) else json.dumps(schema, ensure_ascii=False))

    @staticmethod
    def choice(texts: Sequence[str]) -> Grammar:
        return Grammar("choice", json.dumps(list(texts), ensure_ascii=False))

    def closed(self) -> Grammar:
        """The grammar, in which the objects of a schema have no properties but those that it names, unless it speaks of
        further ones itself.
        """
        if self.kind != "json_schema":
            return self
        try:
            return Grammar.json_schema(closed(json.loads(self.text)))
        except (ValueError, RecursionError):  # a compiler says what is wrong with it
            return self

    def check(self) -> None:
        """Raises GrammarError for what no compiler needs to see: an unknown kind, or a text beyond the limits."""
        if self.kind not in KINDS:
            raise GrammarError(f"the grammar kind {self.kind!r} is unknown; it is one of {', '.join(KINDS)}")
        if len(self.text) > MOST_CHARACTERS:
            raise GrammarError(
                f"the {self.kind} has {len(self.text):,} characters, more than the limit of {MOST_CHARACTERS:,}; "
                "use a smaller one"
            )
        if not self.text and self.kind != "json_object":
            raise GrammarError(f"the {self.kind} is empty")
        if self.kind == "choice":
            self.choices()

    def choices(self) -> list[str]:
        """The texts of a choice. Raises GrammarError if it is none."""
        try:
            texts = json.loads(self.text)
        except (ValueError, RecursionError):
            texts = None
        if not isinstance(texts, list) or not texts or not all(isinstance(text, str) and text for text in texts):
            raise GrammarError("a choice must be a list of strings, at least one, none of them empty")
        if len(texts) > MOST_CHOICES:
            raise GrammarError(f"the choice has {len(texts):,} strings; the limit is {MOST_CHOICES:,}")
        return texts
