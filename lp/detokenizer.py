"""Token ids to text as they come, never half a UTF-8 character. Knows nothing of when a text ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokenizers.decoders import DecodeStream

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


class Detokenizer:
    """The text of one sequence. Special tokens have no text."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast):
        self._backend = tokenizer.backend_tokenizer
        self._stream = DecodeStream(skip_special_tokens=True)
        self._pending: list[int] = []

    def push(self, token: int) -> str:
        """Text that is certain now that `token` is there; empty while a character is incomplete."""
        self._pending.append(token)
        text = self._stream.step(self._backend, token)
        if text is None:
            return ""
        self._pending.clear()
        return text

    def flush(self) -> str:
        """What is left at the end of a sequence: bytes of an incomplete character show as U+FFFD."""
        text = self._backend.decode(self._pending, skip_special_tokens=True)
        self._pending.clear()
        return text
