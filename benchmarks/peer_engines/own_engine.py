"""This project's engine as one of the compared engines."""

from __future__ import annotations

from benchmarks.peer_engines.base import PeerPrompt, PeerText
from lp import Auto, Autoregressive, Engine, Lookahead, Sampling, Stopping
from lp.request import DecodingMethod

AUTOREGRESSIVE = "ours, autoregressive"
METHODS: dict[str, DecodingMethod] = {
    AUTOREGRESSIVE: Autoregressive(),
    "ours, auto": Auto(),
    "ours, lookahead (15, 5, 15)": Lookahead(15, 5, 15),
}


class OwnPeer:
    """One decoding method of an engine, which several of them may share."""

    def __init__(self, name: str, engine: Engine, method: DecodingMethod):
        self.name = name
        self.engine = engine
        self.method = method

    def decode(self, prompt: PeerPrompt, max_new_tokens: int) -> PeerText:
        greedy, stopping = Sampling(temperature=0.0, seed=0), Stopping(max_new_tokens)
        progress = self.engine.stream(prompt.tokens, decode=self.method, sampling=greedy, stopping=stopping)
        first = next(progress)
        tokens, stats = list(first.tokens), first.stats
        num_first, prompt_s = len(tokens), stats.decode_s
        for more in progress:
            tokens += more.tokens
            stats = more.stats
        return PeerText(len(tokens), num_first, prompt_s, stats.decode_s - prompt_s, tokens)

    def close(self) -> None:
        """The engine goes when the last of its methods does."""
