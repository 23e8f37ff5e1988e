"""Turns token ids into text as they come, in whole characters. Knows nothing of when a text ends.

What a token adds to the text depends on the tokens before it: a character can take several byte tokens, and
SentencePiece decoders drop the space that a text begins with. So each token is decoded together with a few tokens
before it, and the text of those is left out, as in text-generation-inference and vLLM. U+FFFD at the end may be a
character whose last bytes are missing, so it is held back.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

REPLACEMENT = "\ufffd"
# The most bytes of an incomplete UTF-8 character. Byte-level decoders show them as one U+FFFD, decoders with byte
# fallback as one U+FFFD each.
INCOMPLETE = 3
# The number of last tokens that suffice to decode the next: more than INCOMPLETE characters of INCOMPLETE bytes each.
CONTEXT = 16
# A window that grows longer than this while text is held back is cut to its last CONTEXT tokens.
LONGEST_WINDOW = 2 * CONTEXT


class Detokenizer:
    """The text that tokens add to a prompt's text, token by token. Special tokens have no text if they are skipped.

    If a run of bytes holds a wrong one, a decoder with byte fallback shows the whole run as U+FFFD. Here the characters
    before the wrong byte may have been given out already, so only the wrong byte and those after it become U+FFFD. If
    the text itself holds U+FFFD, written in bytes, it cannot be told from a wrong byte: next to other characters
    written in bytes it may appear more than once.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerFast, prompt: Sequence[int] = (), skip_special: bool = True):
        self._backend = tokenizer.backend_tokenizer
        self._skip_special = skip_special
        self._window = self._last(prompt)
        self._num_done = len(self._window)  # first tokens of the window, whose text has all been given out
        self._given = self._decode(self._window)  # text of the window that has been given out

    def push(self, token: int) -> str:
        """Adds a token; returns the text that is now certain, which is empty while a character is incomplete."""
        if not self._has_text(token):
            return ""
        self._window.append(token)
        text = self._decode(self._window)
        if not text.startswith(self._given):  # a run of bytes that is not valid, or not yet
            if text.endswith(REPLACEMENT) and len(self._window) - self._num_done <= INCOMPLETE:
                return ""
            text = self._start_anew()
        num_held = min(INCOMPLETE, len(text) - len(text.rstrip(REPLACEMENT)))
        new = text[len(self._given) : len(text) - num_held]
        self._given += new
        if num_held == 0:
            self._forget(self._num_done)
            self._num_done = len(self._window)
        elif len(self._window) > LONGEST_WINDOW:
            self._forget(len(self._window) - CONTEXT, num_held)
        return new

    def flush(self) -> str:
        """Returns the text held back at the end of a sequence. Bytes of an incomplete character become U+FFFD."""
        text = self._decode(self._window)
        if not text.startswith(self._given):
            text = self._start_anew()
        new = text[len(self._given) :]
        self._given, self._num_done = text, len(self._window)
        return new

    def _last(self, prompt: Sequence[int]) -> list[int]:
        """The last tokens of a prompt that have text, cut between two characters."""
        last = list(islice(filter(self._has_text, reversed(prompt)), CONTEXT))[::-1]
        if len(last) < CONTEXT:
            return last
        return min((last[at:] for at in range(INCOMPLETE + 1)), key=lambda ids: self._decode(ids).count(REPLACEMENT))

    def _has_text(self, token: int) -> bool:
        """False for skipped special tokens and unknown ids. Decodes it twice, as a leading space may be dropped."""
        return bool(self._decode([token, token]))

    def _decode(self, tokens: list[int]) -> str:
        if len(tokens) <= 2:  # they recur: a token alone, and a usual pair
            return _text_of_few(self._backend, self._skip_special, *tokens)
        return self._backend.decode(tokens, skip_special_tokens=self._skip_special)

    def _start_anew(self) -> str:
        """Drops the tokens whose text has been given out from the window; returns the text of the others."""
        self._window, self._num_done, self._given = self._window[self._num_done :], 0, ""
        return self._decode(self._window)

    def _forget(self, num_tokens: int, num_held: int = 0) -> None:
        """Drops the window's first tokens; all of its text but the last num_held characters has been given out."""
        self._window = self._window[num_tokens:]
        self._num_done = max(0, self._num_done - num_tokens)
        text = self._decode(self._window)
        self._given = text[: len(text) - num_held]


@lru_cache(maxsize=1 << 15)
def _text_of_few(backend: Tokenizer, skip_special: bool, *tokens: int) -> str:
    return backend.decode(list(tokens), skip_special_tokens=skip_special)
