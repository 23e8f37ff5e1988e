"""Grammars by xgrammar, for those who ask for it: it compiles in up to seconds, and knows less of JSON schemas.

What it would not keep exactly is refused (lp/grammar/xgrammar_limits.py).
"""

from __future__ import annotations

import ctypes
import json
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from xgrammar import CompiledGrammar, GrammarCompiler, GrammarMatcher, TokenizerInfo
from xgrammar import Grammar as XGrammar

from lp.grammar import xgrammar_limits
from lp.grammar.matcher import one_line
from lp.grammar.settings import ANY_OBJECT, Grammar, GrammarError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

# JSON on one line, as json.dumps writes it; what a schema does not forbid is allowed.
JSON_OPTIONS = {"any_whitespace": False, "separators": (", ", ": "), "strict_mode": False}


class TokenBytes:
    """A Vocabulary."""

    def __init__(self, info: TokenizerInfo, tokenizer: PreTrainedTokenizerFast):
        self._bytes, self._encode = info.decoded_vocab, tokenizer.backend_tokenizer.encode

    def decode_bytes(self, tokens: list[int]) -> bytes:
        return b"".join(self._bytes[token] for token in tokens)

    def tokenize_bytes(self, utf8bytes: bytes) -> list[int]:
        return self._encode(utf8bytes.decode(errors="ignore"), add_special_tokens=False).ids


class XGrammarCompiler:
    """A Compiler."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, vocab_size: int, eos: Sequence[int]):
        """eos: none of them means the tokenizer's own. Raises GrammarError for a tokenizer of an unknown kind."""
        try:
            info = TokenizerInfo.from_huggingface(tokenizer, vocab_size=vocab_size, stop_token_ids=list(eos) or None)
        except Exception as error:
            raise GrammarError(f"this model's tokenizer knows no grammars: {one_line(str(error))}") from error
        self.vocabulary = TokenBytes(info, tokenizer)
        self._stop_mask, self._all_mask = _bits(info.stop_token_ids, vocab_size), _bits(range(vocab_size), vocab_size)
        # JSON on one line has none of these bytes, but xgrammar would allow them in strings of a bounded length.
        texts = enumerate(info.decoded_vocab)
        controls = [token for token, text in texts if token < vocab_size and any(byte < 0x20 for byte in text)]
        self._json_mask = self._all_mask & ~_bits(controls, vocab_size)
        # What is compiled is kept by lp/grammar/compiler.py.
        self._compiler = GrammarCompiler(info, max_threads=1, cache_enabled=False)

    def compile(self, grammar: Grammar) -> XGrammarMatcher:
        try:
            compiled = self._compiled(grammar)
        except RuntimeError as error:
            raise GrammarError(f"the {grammar.kind} cannot be used: {_message(error)}") from None
        allowed = self._json_mask if grammar.kind.startswith("json") else self._all_mask
        return XGrammarMatcher(GrammarMatcher(compiled), self.vocabulary, allowed, self._stop_mask)

    def _compiled(self, grammar: Grammar) -> CompiledGrammar:
        match grammar.kind:
            case "json_object":
                return self._compiler.compile_json_schema(ANY_OBJECT, **JSON_OPTIONS)
            case "json_schema":
                xgrammar_limits.check_schema(_schema(grammar.text))
                return self._compiler.compile_json_schema(grammar.text, **JSON_OPTIONS)
            case "regex":
                xgrammar_limits.check_pattern("regex", grammar.text)
                return self._compiler.compile_regex(grammar.text)
            case "choice":
                literals = (json.dumps(text, ensure_ascii=False) for text in grammar.choices())
                return self._compiler.compile_grammar(XGrammar.from_ebnf(f"root ::= {' | '.join(literals)}"))
            case "grammar":
                xgrammar_limits.check_grammar(grammar.text)
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


def _bits(tokens: Sequence[int], vocab_size: int) -> np.ndarray:
    """int32, with the bits of some tokens set."""
    bits = np.zeros(-(-vocab_size // 32) * 32, np.uint8)
    bits[list(tokens)] = 1
    return np.packbits(bits, bitorder="little").view(np.int32)


def _schema(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise GrammarError(f"the json_schema cannot be read: {one_line(str(error))}") from None


def _message(error: RuntimeError) -> str:
    """What xgrammar says of a fault, without the time and the place in its own sources."""
    return one_line(re.sub(r"^\[[\d:]+\] \S+: ", "", str(error)))
