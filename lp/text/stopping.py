"""Finds where a sequence ends: end-of-sequence tokens, stop tokens, stop strings, the number of tokens.

Tokens are checked one at a time, so that a sequence that ends within a step's tokens is cut at the right one. Knows
nothing of how tokens are produced.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from numbers import Integral
from typing import TYPE_CHECKING, Literal

from lp.text.detokenizer import Detokenizer
from lp.tree import DEAD_END, NOT_A_TOKEN

if TYPE_CHECKING:
    from lp.grammar.state import GrammarState

# "error" means that the model's logits were not numbers; "no_room", that the request needs more keys and values than
# there is memory for; "unsupported", that the model's forward cannot do what the request asks for; "dead_end", that
# the grammar does not let the text end, and nothing that it allows may follow.
FinishReason = Literal["stop", "length", "cancelled", "error", "no_room", "unsupported", "dead_end"]
# Of requests that were refused. The text is a message that says why.
REFUSALS = ("no_room", "unsupported")


@dataclass
class Stopping:
    """When generation stops.

    max_new_tokens: None allows as many as the context holds; 0 is for a prompt whose log-probabilities alone are
    wanted. stop: strings that end the text and are not part of it. stop_token_ids: tokens that end it, as the
    checkpoint's end-of-sequence tokens do. ignore_eos: the latter do not end it. skip_special_tokens: whether special
    tokens are left out of the text, in which stop strings are looked for. include_stop: whether the stop string, or the
    text of the token, that ends a text is a part of it.
    """

    max_new_tokens: int | None = None
    stop: list[str] = field(default_factory=list)
    stop_token_ids: list[int] = field(default_factory=list)
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    include_stop: bool = False

    def check(self, vocab_size: int | None = None, least_tokens: int = 1) -> None:
        """Raises ValueError naming the first setting that is out of range.

        vocab_size: None is not known yet. least_tokens: of max_new_tokens.
        """
        if not isinstance(self.max_new_tokens, Integral | None):
            raise ValueError(f"max_new_tokens={self.max_new_tokens!r} must be a whole number")
        if self.max_new_tokens is not None and self.max_new_tokens < least_tokens:
            raise ValueError(f"max_new_tokens={self.max_new_tokens} must be at least {least_tokens}")
        if any(not text for text in self.stop):
            raise ValueError("stop holds an empty string, which would end every text at once")
        for token in self.stop_token_ids:
            if vocab_size is not None and not 0 <= token < vocab_size:
                raise ValueError(f"stop_token_ids holds {token}, but the vocabulary has ids 0 to {vocab_size - 1}")


class TextStream:
    """The text of a growing sequence, cut at the first stop string. Text that may begin a stop string is held back.

    Without stop strings, tokens become text when it is taken: then nothing else depends on it.
    """

    def __init__(self, detokenizer: Detokenizer, stop: Sequence[str], includes_stop: bool = False):
        """includes_stop: whether the text ends behind the stop string rather than before it."""
        self.detokenizer = detokenizer
        self.stop, self.includes_stop = list(stop), includes_stop
        self.longest = max((len(text) for text in stop), default=0)
        self.text = ""
        self.num_emitted = 0
        self.stopped_by: str | None = None
        self._waiting: list[int] = []
        # Adds a token that becomes text later.
        self.keep: Callable[[int], None] = self._waiting.append

    def push(self, token: int) -> bool:
        """Adds a token; returns True if its text completes a stop string, and then cuts the text before that string."""
        if not self.stop:
            self.keep(token)
            return False
        return self._extend(self.detokenizer.push(token))

    def _extend(self, more: str) -> bool:
        searched_from = max(0, len(self.text) - self.longest + 1)
        self.text += more
        found = [(at, text) for text in self.stop if (at := self.text.find(text, searched_from)) >= 0]
        if found:
            at, self.stopped_by = min(found)
            self.text = self.text[: at + len(self.stopped_by) * self.includes_stop]
        return bool(found)

    def take(self, final: bool) -> str:
        """Returns the text that is not given out yet. Unless it is final, an end that may begin a stop string waits."""
        for token in self._waiting:
            self._extend(self.detokenizer.push(token))
        self._waiting.clear()
        if final and self.stopped_by is None:
            self._extend(self.detokenizer.flush())
        end = len(self.text) if final else len(self.text) - self._held_back()
        new = self.text[self.num_emitted : end]
        self.num_emitted = max(end, self.num_emitted)
        return new

    def _held_back(self) -> int:
        """The length of the longest end of the text that begins a stop string."""
        longest = min(self.longest - 1, len(self.text))
        for length in range(longest, 0, -1):
            if any(text.startswith(self.text[-length:]) for text in self.stop):
                return length
        return 0


class StopConditions:
    """Decides, token by token, whether a sequence is over. num_left: how many tokens may still come."""

    def __init__(
        self, stopping: Stopping, eos: Sequence[int], max_new_tokens: int, grammar: GrammarState | None = None
    ):
        """grammar: what the text must keep; it gets every token that does not end the text otherwise."""
        self.grammar = grammar
        self.stop_tokens = {*stopping.stop_token_ids, *(() if stopping.ignore_eos else eos)}
        self._wants_none = not max_new_tokens
        self.num_left = max(1, max_new_tokens)  # the step that ends a sequence computes a token

    def take(self, tokens: Iterable[int], text: TextStream) -> tuple[list[int], FinishReason | None]:
        """Counts tokens up to the first that ends the sequence, and adds their text, but for a stop token.

        Returns these tokens, and why the sequence ends; None if it does not. NOT_A_TOKEN ends it, and is not returned:
        all ranks get the same answers, so all of them end it. So does DEAD_END.
        """
        taken: list[int] = []
        if self._wants_none:
            return taken, "length"
        push = text.push if text.stop else text.keep
        for token in tokens:
            if token == NOT_A_TOKEN:
                return taken, "error"
            if token == DEAD_END:
                return taken, "dead_end"
            taken.append(token)
            self.num_left -= 1
            if token in self.stop_tokens:
                if text.includes_stop:
                    push(token)
                return taken, "stop"
            if push(token):
                return taken, "stop"
            if self.grammar is not None:
                if not self.grammar.push(token):
                    return taken, "dead_end"
                if self.grammar.is_over:
                    return taken, "stop"
            if self.num_left <= 0:
                return taken, "length"
        return taken, None
