"""Rounds in which all engines decode the same prompts in turn, and the figures of each engine."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

from benchmarks.peer_engines.base import Peer, PeerPrompt, PeerText, Unavailable
from benchmarks.shared.report import progress

# New tokens of the text that an engine decodes before the first round: it pays for what is made only once.
WARM_UP = 8
# What a tokenizer gives for a character whose bytes are not all there.
HALF = "\N{REPLACEMENT CHARACTER}"


@dataclass
class PeerRecord:
    """What one engine did. texts: in the order of the prompts, a list for each round."""

    name: str
    texts: list[list[PeerText]] = field(default_factory=list)

    def decoding_rates(self, numbers: Sequence[int] | None = None) -> list[float]:
        """Tokens per second of each round after the reading of the prompts. numbers: of prompts; None takes all."""
        return [
            sum(text.num_tokens - text.num_first for text in texts) / sum(text.decode_s for text in texts)
            for texts in self._chosen(numbers)
        ]

    def whole_rates(self) -> list[float]:
        """Tokens per second of each round, the reading of the prompts included."""
        return [
            sum(text.num_tokens for text in texts) / sum(text.prompt_s + text.decode_s for text in texts)
            for texts in self.texts
        ]

    def prompt_seconds(self, number: int) -> list[float]:
        """Seconds of each round until the first token of one prompt."""
        return [texts[number].prompt_s for texts in self.texts]

    def _chosen(self, numbers: Sequence[int] | None) -> list[list[PeerText]]:
        return self.texts if numbers is None else [[texts[number] for number in numbers] for texts in self.texts]


@dataclass
class Comparison:
    """All engines at one number format.

    skipped: why an engine is missing, by its name. read: what some engines did with prompts whose reading alone counts.
    """

    dtype: str
    records: list[PeerRecord]
    skipped: dict[str, str]
    read: list[PeerRecord] = field(default_factory=list)

    def record(self, name: str) -> PeerRecord | None:
        return next((record for record in self.records if record.name == name), None)


def compare(
    dtype: str, peers: Sequence[Peer], prompts: Sequence[PeerPrompt], max_new_tokens: int, rounds: int
) -> Comparison:
    """Lets the engines take turns on every prompt. The one that begins rotates from prompt to prompt.

    An engine that turns out to be unavailable is left out from then on, with what it did before.
    """
    found = Comparison(dtype, [], {})
    left: dict[str, Peer] = {}
    for peer in progress(peers, f"warming up, {dtype}", unit="engine"):
        if _try(peer, prompts[0], WARM_UP, found) is not None:
            left[peer.name] = peer
    records = {name: PeerRecord(name) for name in left}
    turns = [(number, prompt) for number in range(rounds) for prompt in prompts]
    for turn, (number, prompt) in enumerate(progress(turns, f"decoding, {dtype}", unit="prompt")):
        names = [name for name in records if name in left]
        for name in names[turn % len(names) :] + names[: turn % len(names)] if names else []:
            text = _try(left[name], prompt, max_new_tokens, found)
            if text is None:
                del left[name]
                continue
            record = records[name]
            if len(record.texts) == number:
                record.texts.append([])
            record.texts[number].append(text)
    found.records = [records[name] for name in left]
    return found


def _try(peer: Peer, prompt: PeerPrompt, max_new_tokens: int, found: Comparison) -> PeerText | None:
    """The engine's text, or None with the reason noted."""
    try:
        return peer.decode(prompt, max_new_tokens)
    except Unavailable as error:
        found.skipped[peer.name] = str(error).removeprefix(f"{peer.name} ")
        return None


def median_ratio(rates: Sequence[float], base: Sequence[float]) -> float:
    """The median over the rounds of one engine's rate divided by another's in the same round; NaN without rates."""
    ratios = [rate / other for rate, other in zip(rates, base, strict=True) if other]
    return statistics.median(ratios) if ratios else math.nan


def same_text(text: PeerText, expected: Sequence[int], expected_text: str, eos: Sequence[int]) -> bool | None:
    """Whether an engine's text is the expected one; None if the engine tells no text.

    Some engines leave out the token that ends a text, and some print more tokens than they were asked for.
    """
    wanted = [token for token in expected if token not in eos]
    if text.tokens is not None:
        told = [token for token in text.tokens if token not in eos]
        return told[: len(expected)] == wanted
    return None if text.text is None else text.text.startswith(expected_text.rstrip(HALF))
