"""What every compared engine is: something that continues a prompt greedily and says how long that took."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


class Unavailable(Exception):
    """An engine cannot be had on this machine. The message is one line that says why."""


@dataclass(frozen=True)
class PeerPrompt:
    """A prompt as text and as token ids; both say the same."""

    category: str
    text: str
    tokens: list[int]


@dataclass(frozen=True)
class PeerText:
    """One greedy text.

    num_tokens: new tokens. num_first: those of them that came with the reading of the prompt. prompt_s: seconds until
    then. decode_s: seconds from then to the last token. tokens: their ids, if the engine tells them; it may leave out
    the token that ends the text. text: what it printed, if it tells no ids; it may have printed more tokens than asked.
    """

    num_tokens: int
    num_first: int
    prompt_s: float
    decode_s: float
    tokens: list[int] | None = None
    text: str | None = None


class Peer(Protocol):
    """An engine with a method of decoding, on loaded weights. name: in tables."""

    name: str

    def decode(self, prompt: PeerPrompt, max_new_tokens: int) -> PeerText:
        """Continues a prompt. Raises Unavailable if it turns out that this engine cannot."""
        ...

    def close(self) -> None:
        """Frees what the engine holds."""
        ...
