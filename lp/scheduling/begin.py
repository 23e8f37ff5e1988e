"""Begins the generations of a request: one, or several for methods that make one text of many."""

from __future__ import annotations

from collections.abc import Sequence

from lp.drafting.history import DraftHistory
from lp.generation import RequestState
from lp.methods import Beam
from lp.model.checkpoint import Checkpoint
from lp.nested.settings import BestOf
from lp.request import Request
from lp.scheduling.beams import BeamGeneration
from lp.scheduling.best_of import Samples


def begin(
    request: Request, checkpoint: Checkpoint, history: DraftHistory, tokens: Sequence[int] = ()
) -> list[RequestState]:
    """The generations of a request, which all tell their progress in its name.

    tokens: generated elsewhere, which must be replayed next. A beam search and decode=best_of begin anew, without any.
    """
    if isinstance(request.decode, BestOf):
        assert not tokens
        return Samples(request, checkpoint, history).generations
    kind = BeamGeneration if isinstance(request.decode, Beam) else RequestState
    return [kind(request, checkpoint, history, tokens)]
