"""Token ids to text as they come, never half a UTF-8 character. Knows nothing of when a text ends.

What a token adds depends on those before it: bytes make up a character, and SentencePiece decoders drop the space that
a text begins with. So tokens are decoded together with the few before them, as text-generation-inference and vLLM do
it, and what those gave is left out. An end in U+FFFD may be a character that lacks bytes, and is kept for later.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

REPLACEMENT = "\ufffd"
INCOMPLETE = 3
"""Bytes that an unfinished UTF-8 character can have. Byte-level decoders show them as one U+FFFD, byte-fallback ones
show one for each."""
CONTEXT = 16
"""Tokens that are enough to go on from: more than INCOMPLETE characters of INCOMPLETE bytes, and some before them."""
LONGEST_WINDOW = 2 * CONTEXT


class Detokenizer:
    """The text that tokens add to that of a prompt. Special tokens have no text.

    A decoder with byte fallback shows a whole run of bytes as U+FFFD for one that is wrong; here, where the text before
    it may be out already, only that byte and those after it are. A U+FFFD that is itself written in bytes
    cannot be told from a wrong byte there: next to other characters in bytes it may show more than once.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerFast, prompt: Sequence[int] = ()):
        self._backend = tokenizer.backend_tokenizer
        self._window = self._last(prompt)
        self._num_done = len(self._window)  # tokens of the window whose text is out to the end
        self._given = self._decode(self._window)  # text of the window that is out

    def push(self, token: int) -> str:
        """Text that is certain now that `token` is there; empty while a character is incomplete."""
        if not self._has_text(token):
            return ""
        self._window.append(token)
        text = self._decode(self._window)
        if not text.startswith(self._given):  # a byte run that is invalid as it stands
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
        """What is left at the end of a sequence: bytes of an incomplete character show as U+FFFD."""
        text = self._decode(self._window)
        if not text.startswith(self._given):
            text = self._start_anew()
        new = text[len(self._given) :]
        self._given, self._num_done = text, len(self._window)
        return new

    def _last(self, prompt: Sequence[int]) -> list[int]:
        """The end of a prompt, cut between two characters."""
        last = list(islice(filter(self._has_text, reversed(prompt)), CONTEXT))[::-1]
        if len(last) < CONTEXT:
            return last
        return min((last[at:] for at in range(INCOMPLETE + 1)), key=lambda ids: self._decode(ids).count(REPLACEMENT))

    def _has_text(self, token: int) -> bool:
        """False for special tokens and unknown ids. Looks at two, for a space may be dropped where it comes first."""
        return bool(self._decode([token, token]))

    def _decode(self, tokens: list[int]) -> str:
        return self._backend.decode(tokens, skip_special_tokens=True)

    def _start_anew(self) -> str:
        """Lets go of the tokens that are done; returns the text of the others."""
        self._window, self._num_done, self._given = self._window[self._num_done :], 0, ""
        return self._decode(self._window)

    def _forget(self, num_tokens: int, num_held: int = 0) -> None:
        """Lets go of the first tokens, where all text but the last num_held characters is out."""
        self._window = self._window[num_tokens:]
        self._num_done = max(0, self._num_done - num_tokens)
        text = self._decode(self._window)
        self._given = text[: len(text) - num_held]
