"""Compiles grammars for one tokenizer, with llguidance or xgrammar, and keeps those that were used last.

llguidance compiles in milliseconds, xgrammar in up to seconds. The first grammar also makes the package's own form of
the vocabulary, which takes llguidance about a second for 100,000 tokens. Any thread may call this.
"""

from __future__ import annotations

import importlib.util
import threading
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from lp.grammar.matcher import Matcher
from lp.grammar.settings import Grammar, GrammarBackend, GrammarError
from lp.grammar.state import GrammarState

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

    from lp.grammar.with_llguidance import GuidanceCompiler
    from lp.grammar.with_xgrammar import XGrammarCompiler

MISSING = "structured output needs the package llguidance; install it with pip install 'lookahead-parallel[grammar]'"
# The extras of this project that install the packages.
EXTRAS = {GrammarBackend.llguidance: "grammar", GrammarBackend.xgrammar: "xgrammar"}
# Compiled grammars that are kept.
MOST_KEPT = 128


def pick_backend(asked: GrammarBackend) -> GrammarBackend | None:
    """The package that compiles grammars: the one that is asked for, or the first that is installed, llguidance first,
    as it has no compile delay. None if auto finds none. Raises ValueError if the one asked for is not installed.
    """
    installed = [package for package in EXTRAS if importlib.util.find_spec(package) is not None]
    if asked is GrammarBackend.auto:
        return installed[0] if installed else None
    if asked not in installed:
        raise ValueError(
            f"model.grammar_backend={asked} needs the package {asked}; install it with "
            f"pip install 'lookahead-parallel[{EXTRAS[asked]}]', or use model.grammar_backend=auto"
        )
    return asked


class Grammars:
    """The grammars of one tokenizer."""

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerFast,
        vocab_size: int,
        eos: Sequence[int],
        backend: GrammarBackend = GrammarBackend.auto,
    ):
        """vocab_size: of the model, which may have more tokens than the tokenizer. eos: end-of-sequence tokens.

        Raises ValueError if the backend is not installed.
        """
        self._tokenizer, self._vocab_size, self._eos = tokenizer, vocab_size, list(eos)
        self._backend = pick_backend(backend)
        self._compiler: GuidanceCompiler | XGrammarCompiler | None = None
        self._kept: OrderedDict[Grammar, Matcher] = OrderedDict()
        self._lock, self._making = threading.Lock(), threading.Lock()

    def warm_up(self) -> None:
        """Makes what the first grammar needs; nothing where grammars cannot be had. It holds the interpreter's lock, so
        other threads stand still for as long.
        """
        with suppress(GrammarError):
            self._made()

    def compile(self, grammar: Grammar) -> None:
        """Compiles a grammar if it is not kept. Raises GrammarError, which says where the grammar is wrong."""
        self._compile(grammar)

    def begin(self, grammar: Grammar, prompt_length: int) -> GrammarState:
        """The state of a text that has not begun. See `compile`.

        prompt_length: tokens of a sequence before its text.
        """
        return GrammarState(self._compile(grammar), self._made().vocabulary, self._vocab_size, prompt_length)

    def _compile(self, grammar: Grammar) -> Matcher:
        """Nobody waits for a grammar that another thread compiles; two may compile the same one."""
        with self._lock:
            if matcher := self._kept.get(grammar):
                self._kept.move_to_end(grammar)
                return matcher
        grammar.check()
        matcher = self._made().compile(grammar)
        with self._lock:
            self._kept[grammar] = matcher
            while len(self._kept) > MOST_KEPT:
                self._kept.popitem(last=False)
        return matcher

    def _made(self) -> GuidanceCompiler | XGrammarCompiler:
        with self._making:
            if self._compiler is None:
                self._compiler = self._make()
            return self._compiler

    def _make(self) -> GuidanceCompiler | XGrammarCompiler:
        match self._backend:
            case GrammarBackend.llguidance:
                from lp.grammar.with_llguidance import GuidanceCompiler

                return GuidanceCompiler(self._tokenizer, self._vocab_size, self._eos)
            case GrammarBackend.xgrammar:
                from lp.grammar.with_xgrammar import XGrammarCompiler

                return XGrammarCompiler(self._tokenizer, self._vocab_size, self._eos)
        raise GrammarError(MISSING)
