"""Makes decoders without an engine."""

from __future__ import annotations

from collections.abc import Sequence

from lp.decoder import Decoder
from lp.drafting.history import DraftHistory
from lp.request import DecodingContext, DecodingMethod, Request
from lp.sampling.settings import Sampling
from lp.text.stopping import Stopping


def make_decoder(
    settings: DecodingMethod,
    prompt: Sequence[int],
    seed: int,
    temperature: float,
    history: DraftHistory,
    owner: str | None = None,
) -> Decoder:
    """A decoder for one sequence."""
    sampling = Sampling(temperature=temperature, seed=seed)
    request = Request("0", list(prompt), settings, sampling, Stopping(1000), owner)
    return settings.make_decoder(request, DecodingContext(history))
