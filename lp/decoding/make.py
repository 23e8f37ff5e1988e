"""Makes the decoder that a request asks for. To add a decoding method, write one more file and add a case here."""

from __future__ import annotations

from collections.abc import Sequence

from lp.decoding.auto import AutoDecoder
from lp.decoding.base import Decoder
from lp.decoding.by_model.asking import Experience
from lp.decoding.by_model.base import SecondText
from lp.decoding.by_model.decoder import ModelDecoder
from lp.decoding.by_model.mixed import MixedDecoder
from lp.decoding.jacobi import JacobiDecoder
from lp.decoding.lookahead import LookaheadDecoder, PoolFeed
from lp.decoding.medusa.decoder import MedusaDecoder
from lp.decoding.window import Window
from lp.drafting.history import DraftHistory
from lp.methods import (
    AUTO,
    Auto,
    Autoregressive,
    Beam,
    BestOf,
    Contrastive,
    DecodeSettings,
    DraftModel,
    Jacobi,
    Lookahead,
    Medusa,
    PromptLookup,
)


def make_decoder(
    settings: DecodeSettings,
    prompt: Sequence[int],
    seed: int,
    temperature: float,
    history: DraftHistory,
    owner: str | None = None,
    second: SecondText | None = None,
) -> Decoder:
    """A decoder for one sequence.

    seed: for the random tokens that fill window cells and Jacobi guesses at first. temperature: 0 is greedy. history:
    what the engine has learnt from earlier requests. owner: who sent the request; None is nobody in particular.
    second: what a second model holds of the sequence; None if it is not to draft. decode=draft_model needs it.
    """
    match settings:
        case Auto():
            decoder = AutoDecoder(settings, prompt, seed, temperature, history, owner)
            if second is None:
                return decoder
            experience = history.of_all(settings.method, temperature, Experience)
            return MixedDecoder(decoder, second, experience, bool(settings.rows))
        case Autoregressive():
            return LookaheadDecoder(None, None, 0)
        case Jacobi():
            chains = history.chains(temperature) if settings.window == AUTO else None
            return JacobiDecoder(settings, prompt, seed, chains)
        case PromptLookup():
            return LookaheadDecoder(None, PoolFeed(settings, prompt, windowed=False), settings.guesses)
        case Lookahead():
            window = Window(settings.window, settings.ngram - 1, prompt, seed)
            feed = PoolFeed(settings, prompt, windowed=settings.window_drafts)
            return LookaheadDecoder(window, feed, settings.guesses, settings.position_noise)
        case DraftModel():
            assert second is not None, "requests are refused where there is no second model"
            experience = history.of_all(settings.method, temperature, Experience)
            return ModelDecoder(settings, second, history.cost(settings, temperature), experience)
        case Medusa():
            return MedusaDecoder(settings)
        case Beam():
            raise AssertionError("a beam search has generations of its own, see lp/scheduling/beams.py")
        case Contrastive() | BestOf():
            raise AssertionError("it is the method inside that plans trees, see inner_of")
