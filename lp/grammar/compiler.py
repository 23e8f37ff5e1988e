"""Compiles grammars for one tokenizer, with llguidance, and keeps those that were used last.

Compiling takes milliseconds. The first grammar also makes a trie of the vocabulary, which takes about a second for
100,000 tokens. Any thread may call this.
"""

from __future__ import annotations

import importlib.util
import json
import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from lp.grammar.schema_faults import find_fault
from lp.grammar.settings import Grammar, GrammarError
from lp.grammar.state import GrammarState

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer
    from transformers import PreTrainedTokenizerFast

MISSING = "structured output needs the package llguidance; install it with pip install 'lookahead-parallel[grammar]'"
# Compiled grammars that are kept.
MOST_KEPT = 128
# States of a grammar's lexer, of one to two kilobytes each: llguidance's own limit would allow half a gigabyte.
MOST_LEXER_STATES = 50_000
# JSON on one line, as json.dumps writes it: a model that may write any white space may never end. A schema's
# "x-guidance" can say otherwise.
JSON_OPTIONS = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
ANY_OBJECT = '{"type": "object"}'


class Grammars:
    """The grammars of one tokenizer."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, vocab_size: int, eos: Sequence[int]):
        """vocab_size: of the model, which may have more tokens than the tokenizer. eos: end-of-sequence tokens."""
        self._tokenizer, self._vocab_size, self._eos = tokenizer, vocab_size, list(eos)
        self._trie: LLTokenizer | None = None
        self._kept: OrderedDict[Grammar, LLMatcher] = OrderedDict()
        self._lock, self._making = threading.Lock(), threading.Lock()

    def compile(self, grammar: Grammar) -> None:
        """Compiles a grammar if it is not kept. Raises GrammarError, which says where the grammar is wrong."""
        self._compiled(grammar)

    def begin(self, grammar: Grammar, prompt_length: int) -> GrammarState:
        """The state of a text that has not begun. See `compile`.

        prompt_length: tokens of a sequence before its text.
        """
        return GrammarState(self._compiled(grammar), self._vocabulary(), self._vocab_size, prompt_length)

    def _compiled(self, grammar: Grammar) -> LLMatcher:
        """Nobody waits for a grammar that another thread compiles; two may compile the same one."""
        with self._lock:
            if matcher := self._kept.get(grammar):
                self._kept.move_to_end(grammar)
                return matcher
        matcher = self._make(grammar)
        with self._lock:
            self._kept[grammar] = matcher
            while len(self._kept) > MOST_KEPT:
                self._kept.popitem(last=False)
        return matcher

    def _make(self, grammar: Grammar) -> LLMatcher:
        grammar.check()
        trie = self._vocabulary()
        matcher = _matcher(trie, _in_own_notation(grammar))
        if matcher.is_error():
            raise GrammarError(_reason(trie, grammar, matcher.get_error()))
        probe = matcher.deep_copy()
        probe.compute_bitmask()
        if probe.is_error():
            raise GrammarError(f"the {grammar.kind} is too complex: {_one_line(probe.get_error())}; use a simpler one")
        return matcher

    def _vocabulary(self) -> LLTokenizer:
        if importlib.util.find_spec("llguidance") is None:
            raise GrammarError(MISSING)
        from llguidance.hf import from_tokenizer

        with self._making:
            if self._trie is None:
                eos = self._eos or None  # None is the tokenizer's own
                try:
                    self._trie = from_tokenizer(self._tokenizer, n_vocab=self._vocab_size, eos_token=eos)
                except Exception as error:  # a tokenizer of a kind that llguidance does not know
                    raise GrammarError(f"this model's tokenizer knows no grammars: {_one_line(str(error))}") from error
            return self._trie


def _matcher(trie: LLTokenizer, text: str) -> LLMatcher:
    from llguidance import LLMatcher, LLParserLimits

    limits = LLParserLimits(max_lexer_states=MOST_LEXER_STATES, verbose_errors=False)
    return LLMatcher(trie, text, log_level=0, limits=limits)


def _in_own_notation(grammar: Grammar) -> str:
    """The grammar in llguidance's notation. Raises GrammarError for a text that cannot be read at all."""
    from llguidance import LLMatcher
    from llguidance.gbnf_to_lark import any_to_lark

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
        raise GrammarError(f"the {grammar.kind} cannot be read: {_one_line(str(error))}") from None


def _of_schema(text: str) -> str:
    from llguidance import LLMatcher

    schema = json.loads(text)
    if isinstance(schema, bool):  # every value, or none
        schema = {} if schema else {"enum": []}
    if not isinstance(schema, dict):
        raise GrammarError(f"the json_schema must be a JSON object, not {_one_line(text)[:50]}")
    return LLMatcher.grammar_from_json_schema(schema, defaults=JSON_OPTIONS)  # pyright: ignore[reportArgumentType]


def _reason(trie: LLTokenizer, grammar: Grammar, error: str) -> str:
    """What is wrong with a grammar, and where."""
    where = ""
    if grammar.kind == "json_schema":

        def fault(schema: Any) -> str:
            return _matcher(trie, _of_schema(json.dumps(schema))).get_error()

        where, error = find_fault(json.loads(grammar.text), fault, error)
        where = f" at {where}"
    return f"the {grammar.kind} cannot be used{where}: {_one_line(error)}"


def _one_line(text: str) -> str:
    return " ".join(text.split())[:300]
