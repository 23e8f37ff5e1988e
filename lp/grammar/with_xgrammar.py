"""Grammars by xgrammar, for those who ask for it: it compiles in up to seconds, and knows less of JSON schemas.

It ignores keywords of JSON schemas that it does not know, alone or together, so that an answer might not be valid.
Therefore a schema must have one of the forms that it keeps exactly and in time; all others are refused. The forms are
those of xgrammar 0.2, found by comparing what it takes with what a validator takes.
"""

from __future__ import annotations

import ctypes
import json
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from xgrammar import CompiledGrammar, GrammarCompiler, GrammarMatcher, TokenizerInfo
from xgrammar import Grammar as XGrammar

from lp.grammar.matcher import escaped, one_line
from lp.grammar.settings import ANY_OBJECT, Grammar, GrammarError
from lp.grammar.state import Masks

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

# JSON on one line, as json.dumps writes it; what a schema does not forbid is allowed.
JSON_OPTIONS = {"any_whitespace": False, "separators": (", ", ": "), "strict_mode": False}
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


class TokenBytes:
    """A Vocabulary."""

    def __init__(self, info: TokenizerInfo, tokenizer: PreTrainedTokenizerFast):
        self._bytes, self._encode = info.decoded_vocab, tokenizer.backend_tokenizer.encode

    def decode_bytes(self, tokens: list[int]) -> bytes:
        return b"".join(self._bytes[token] for token in tokens)

    def tokenize_bytes(self, utf8bytes: bytes) -> list[int]:
        return self._encode(utf8bytes.decode(errors="ignore"), add_special_tokens=False).ids


class XGrammarCompiler:
    """Compiles grammars for one tokenizer."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, vocab_size: int, eos: Sequence[int]):
        """eos: none of them means the tokenizer's own. Raises GrammarError for a tokenizer of an unknown kind."""
        try:
            info = TokenizerInfo.from_huggingface(tokenizer, vocab_size=vocab_size, stop_token_ids=list(eos) or None)
        except Exception as error:
            raise GrammarError(f"this model's tokenizer knows no grammars: {one_line(str(error))}") from error
        self.vocabulary = TokenBytes(info, tokenizer)
        self._stop_mask = Masks.of_tokens(info.stop_token_ids, vocab_size)
        self._all_mask = Masks.of_tokens(range(vocab_size), vocab_size)
        # JSON on one line has none of these bytes, but xgrammar would allow them in strings of a bounded length.
        texts = enumerate(info.decoded_vocab)
        controls = [token for token, text in texts if token < vocab_size and any(byte < 0x20 for byte in text)]
        self._json_mask = self._all_mask & ~Masks.of_tokens(controls, vocab_size)
        # What is compiled is kept by lp/grammar/compiler.py.
        self._compiler = GrammarCompiler(info, max_threads=1, cache_enabled=False)

    def compile(self, grammar: Grammar) -> XGrammarMatcher:
        """The matcher of a text that has not begun. Raises GrammarError, which says where the grammar is wrong."""
        try:
            compiled = self._compile(grammar)
        except RuntimeError as error:
            raise GrammarError(f"the {grammar.kind} cannot be used: {_message(error)}") from None
        allowed = self._json_mask if grammar.kind.startswith("json") else self._all_mask
        return XGrammarMatcher(GrammarMatcher(compiled), self.vocabulary, allowed, self._stop_mask)

    def _compile(self, grammar: Grammar) -> CompiledGrammar:
        match grammar.kind:
            case "json_object":
                return self._compiler.compile_json_schema(ANY_OBJECT, **JSON_OPTIONS)
            case "json_schema":
                check_schema(_schema(grammar.text))
                return self._compiler.compile_json_schema(grammar.text, **JSON_OPTIONS)
            case "regex":
                check_pattern("regex", grammar.text)
                return self._compiler.compile_regex(grammar.text)
            case "choice":
                literals = (json.dumps(text, ensure_ascii=False) for text in grammar.choices())
                return self._compiler.compile_grammar(XGrammar.from_ebnf(f"root ::= {' | '.join(literals)}"))
            case "grammar":
                check_grammar(grammar.text)
                if "::=" in grammar.text:
                    return self._compiler.compile_grammar(XGrammar.from_ebnf(grammar.text))
                return self._compiler.compile_lark(grammar.text)


class XGrammarMatcher:
    """A Matcher."""

    def __init__(self, matcher: GrammarMatcher, vocabulary: TokenBytes, allowed: np.ndarray, stop: np.ndarray):
        """allowed, stop: int32, bits of the tokens that may be anywhere in a text, and of those that end it."""
        self._matcher, self._vocabulary = matcher, vocabulary
        self._allowed, self._stop = allowed, stop
        self._is_error = False

    def deep_copy(self) -> XGrammarMatcher:
        copied = XGrammarMatcher(self._matcher.fork(), self._vocabulary, self._allowed, self._stop)
        copied._is_error = self._is_error
        return copied

    def is_error(self) -> bool:
        return self._is_error

    def is_stopped(self) -> bool:
        if self._matcher.is_terminated():
            return True
        return self._matcher.is_completed() and not (self._mask() & ~self._stop).any()

    def consume_token(self, token: int) -> bool:
        self._is_error |= not self._accept(token)
        return not self._is_error

    def consume_tokens(self, tokens: list[int]) -> bool:
        return all(self.consume_token(token) for token in tokens)

    def try_consume_tokens(self, tokens: list[int]) -> int:
        for number, token in enumerate(tokens):
            if not self._accept(token):
                return number
        return len(tokens)

    def _accept(self, token: int) -> bool:
        is_allowed = int(self._allowed[token >> 5]) >> (token & 31) & 1
        return bool(is_allowed) and self._matcher.accept_token(token)

    def rollback(self, num_tokens: int) -> bool:
        self._matcher.rollback(num_tokens)
        return True

    def unsafe_compute_mask_ptr(self, trg_pointer: int, trg_num_bytes: int) -> None:
        ctypes.memmove(trg_pointer, self._mask().ctypes.data, trg_num_bytes)

    def _mask(self) -> np.ndarray:
        """int32, a bit for each token; only stop tokens after one of them."""
        if self._matcher.is_terminated():
            return self._stop
        mask = np.full((1, len(self._stop)), -1, np.int32)
        self._matcher.fill_next_token_bitmask(mask)
        return mask[0] & self._allowed  # xgrammar also sets bits beyond the vocabulary

    def compute_ff_tokens(self) -> list[int]:
        """All but the last of the tokens of the text that must follow: what comes then might be joined to the last."""
        if self._matcher.is_terminated():
            return []
        tokens = self._vocabulary.tokenize_bytes(self.compute_ff_bytes())[:-1]
        num_kept = self.try_consume_tokens(tokens)
        self._matcher.rollback(num_kept)
        return tokens[:num_kept]

    def compute_ff_bytes(self) -> bytes:
        return b"" if self._matcher.is_terminated() else self._matcher.find_jump_forward_string().encode()


def _schema(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise GrammarError(f"the json_schema cannot be read: {one_line(str(error))}") from None


def _message(error: RuntimeError) -> str:
    """What xgrammar says of a fault, without the time and the place in its own sources."""
    return one_line(re.sub(r"^\[[\d:]+\] \S+: ", "", str(error)))


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
    keywords = set(part) & KNOWN
    if unknown := sorted(keywords & UNKNOWN):
        return f"xgrammar does not keep {', '.join(unknown)}"
    if "enum" in keywords or "const" in keywords:
        values = part["enum"] if isinstance(part.get("enum"), list) else [part.get("const")]
        if "type" in part and not all(_has_type(value, _types(part)) for value in values):
            return "xgrammar does not compare the values of enum and const with the type"
    elif "type" not in part and keywords and not {"properties", "items"} & keywords and keywords not in ALONE:
        return f"xgrammar keeps {', '.join(sorted(keywords))} only where the type is given"
    if len(part.get("allOf") or ()) > 1:
        return "xgrammar keeps only the first schema of allOf"
    if not isinstance(needed := part.get("required", []), list) or not isinstance(part.get("properties", {}), dict):
        return ""  # xgrammar itself says so
    if unnamed := [name for name in needed if name not in part.get("properties", {})]:
        return f"xgrammar keeps required only for what properties has, not for {json.dumps(unnamed[0])}"
    if "type" in part and keywords & {"$ref", "anyOf", "allOf"}:
        keywords.add("type")
    elif keywords in ALONE:
        return ""
    for types in _types(part) or ("object", "array"):
        own = set().union(*OF_TYPE.get(types, ()))
        if keywords & own and not any(keywords & own <= form for form in OF_TYPE[types]):
            return f"xgrammar does not keep {', '.join(sorted(keywords & own))} together"
    if mixed := keywords & set().union(*ALONE):
        return f"xgrammar does not keep {', '.join(sorted(mixed))} together with {', '.join(sorted(keywords - mixed))}"
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
