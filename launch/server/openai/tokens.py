"""Finds the bytes and the printable name of a token. Knows nothing of sequences."""

from __future__ import annotations

import json
import re

from transformers import PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import bytes_to_unicode

_BYTE_PIECE = re.compile(r"<0x([0-9A-F]{2})>")
_BYTE_OF = {char: byte for byte, char in bytes_to_unicode().items()}


class TokenNames:
    """Finds the bytes and names of tokens, in byte-level and in SentencePiece vocabularies."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast):
        self._tokenizer = tokenizer
        self._special = set(tokenizer.added_tokens_decoder)
        self._is_byte_level = '"ByteLevel"' in json.dumps(json.loads(tokenizer.backend_tokenizer.to_str())["decoder"])

    def bytes_of(self, token: int) -> bytes:
        """Returns the bytes that a token stands for.

        They are empty for an id that the tokenizer does not know: a model may have more ids than its tokenizer.
        """
        piece = self._tokenizer.convert_ids_to_tokens(token)
        if piece is None:
            return b""
        assert isinstance(piece, str)
        if token in self._special:
            return piece.encode()
        if self._is_byte_level and all(char in _BYTE_OF for char in piece):
            return bytes(_BYTE_OF[char] for char in piece)
        if byte := _BYTE_PIECE.fullmatch(piece):
            return bytes([int(byte[1], 16)])
        return piece.replace("▁", " ").encode()

    def name(self, token: int) -> str:
        """Returns the token's text. Bytes that are not text are written as in OpenAI's API: bytes:\\xe2\\x82."""
        data = self.bytes_of(token)
        try:
            return data.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)
