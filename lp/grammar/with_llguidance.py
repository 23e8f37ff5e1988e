"""Grammars by llguidance, which compiles in milliseconds and follows all kinds of grammars exactly."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from llguidance import LLMatcher, LLParserLimits, LLTokenizer
from llguidance.gbnf_to_lark import any_to_lark
from llguidance.hf import from_tokenizer

from lp.grammar.matcher import escaped, one_line
from lp.grammar.settings import ANY_OBJECT, Grammar, GrammarError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

# States of a grammar's lexer, of one to two kilobytes each: llguidance's own limit would allow half a gigabyte.
MOST_LEXER_STATES = 50_000
# JSON on one line, as json.dumps writes it: a model that may write any white space may never end. A schema's
# "x-guidance" can say otherwise.
JSON_OPTIONS = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
# Keywords whose value is a schema, a list of schemas, or an object with schemas as values.
ONE = ("additionalProperties", "items", "contains", "not", "if", "then", "else", "propertyNames", "additionalItems")
SEVERAL = ("anyOf", "oneOf", "allOf", "prefixItems", "items")
NAMED = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
# What references point to: a part is tried together with it.
SHARED = ("$defs", "definitions", "$id", "$schema")
MOST_TRIES = 500


class GuidanceCompiler:
    """Compiles grammars for one tokenizer. vocabulary: a trie of all tokens, which takes about a second for 100,000 of
    them.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerFast, vocab_size: int, eos: Sequence[int]):
        """eos: none of them means the tokenizer's own. Raises GrammarError for a tokenizer of an unknown kind."""
        try:
            self.vocabulary = from_tokenizer(tokenizer, n_vocab=vocab_size, eos_token=list(eos) or None)
        except Exception as error:
            raise GrammarError(f"this model's tokenizer knows no grammars: {one_line(str(error))}") from error

    def compile(self, grammar: Grammar) -> LLMatcher:
        """The matcher of a text that has not begun. Raises GrammarError, which says where the grammar is wrong."""
        matcher = _matcher(self.vocabulary, _in_own_notation(grammar))
        if matcher.is_error():
            raise GrammarError(_reason(self.vocabulary, grammar, matcher.get_error()))
        probe = matcher.deep_copy()
        probe.compute_bitmask()
        if probe.is_error():
            raise GrammarError(f"the {grammar.kind} is too complex: {one_line(probe.get_error())}; use a simpler one")
        return matcher


def _matcher(trie: LLTokenizer, text: str) -> LLMatcher:
    limits = LLParserLimits(max_lexer_states=MOST_LEXER_STATES, verbose_errors=False)
    return LLMatcher(trie, text, log_level=0, limits=limits)


def _in_own_notation(grammar: Grammar) -> str:
    """The grammar in llguidance's notation. Raises GrammarError for a text that cannot be read at all."""
    try:
        match grammar.kind:
            case "json_object":
                return _of_schema(ANY_OBJECT)
            case "json_schema":
                return _of_schema(grammar.text)
            case "regex":
                return LLMatcher.grammar_from_regex(grammar.text)
            case "choice":
                return LLMatcher.grammar_from_lark("start: " + " | ".join(map(json.dumps, grammar.choices())))
            case "grammar":
                return LLMatcher.grammar_from_lark(any_to_lark(grammar.text))
    except GrammarError:
        raise
    except Exception as error:  # any_to_lark raises what its parser happens to meet
        raise GrammarError(f"the {grammar.kind} cannot be read: {one_line(str(error))}") from None


def _of_schema(text: str) -> str:
    schema = json.loads(text)
    if isinstance(schema, bool):  # every value, or none
        schema = {} if schema else {"enum": []}
    if not isinstance(schema, dict):
        raise GrammarError(f"the json_schema must be a JSON object, not {one_line(text)[:50]}")
    return LLMatcher.grammar_from_json_schema(schema, defaults=JSON_OPTIONS)  # pyright: ignore[reportArgumentType]


def _reason(trie: LLTokenizer, grammar: Grammar, error: str) -> str:
    """What is wrong with a grammar, and where."""
    where = ""
    if grammar.kind == "json_schema":

        def fault(schema: Any) -> str:
            return _matcher(trie, _of_schema(json.dumps(schema))).get_error()

        where, error = find_fault(json.loads(grammar.text), fault, error)
        where = f" at {where}"
    return f"the {grammar.kind} cannot be used{where}: {one_line(error)}"


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
