"""The interface of a package that follows grammars: the part of llguidance's own that this project uses, so that its
matchers need no wrapper. Knows neither the packages nor what a request asks for.
"""

from __future__ import annotations

from typing import Protocol


class Matcher(Protocol):
    """Where a text is in its grammar. A token that it does not take leaves it as it is, unless `is_error` says so."""

    def deep_copy(self) -> Matcher: ...

    def is_error(self) -> bool:
        """Whether it has taken what its grammar forbids, or has reached a limit, and is of no use any more."""
        ...

    def is_stopped(self) -> bool:
        """Whether nothing may follow."""
        ...

    def consume_token(self, token: int, /) -> bool:
        """Goes on with a token. False, and an error, if it may not follow."""
        ...

    def consume_tokens(self, tokens: list[int], /) -> bool:
        """Goes on with tokens. False, and an error, if one may not follow."""
        ...

    def try_consume_tokens(self, tokens: list[int], /) -> int:
        """Goes on as far as the grammar is kept. Returns how many of the tokens it has taken."""
        ...

    def rollback(self, num_tokens: int) -> bool:
        """Goes back by so many tokens."""
        ...

    def unsafe_compute_mask_ptr(self, trg_pointer: int, trg_num_bytes: int, /) -> None:
        """Writes what may follow, a bit for each token of the vocabulary, to memory at that address."""
        ...

    def compute_ff_tokens(self) -> list[int]:
        """The tokens that a tokenizer makes of what must follow, whatever comes after that."""
        ...

    def compute_ff_bytes(self) -> bytes:
        """The text that must follow."""
        ...


class Vocabulary(Protocol):
    """The tokens of a model as bytes."""

    def decode_bytes(self, tokens: list[int]) -> bytes: ...

    def tokenize_bytes(self, utf8bytes: bytes) -> list[int]: ...


def one_line(text: str) -> str:
    """The beginning of a package's message as one line."""
    return " ".join(text.split())[:300]


def escaped(name: str) -> str:
    """A name as part of a JSON pointer."""
    return str(name).replace("~", "~0").replace("/", "~1")
