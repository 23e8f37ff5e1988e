"""Makes the states of a request: one, or several for methods that make one text of many."""

from __future__ import annotations

from collections.abc import Sequence

from lp.drafting.history import DraftHistory
from lp.model.checkpoint import Checkpoint
from lp.request import Request
from lp.scheduling.request_state import RequestState


def make_states(
    request: Request, checkpoint: Checkpoint, history: DraftHistory, tokens: Sequence[int] = ()
) -> list[RequestState]:
    """The states of a request's sequences, whose outputs all carry its id.

    tokens: generated elsewhere, which must be replayed next; none for methods that begin anew.
    """
    if (parent := request.decode.fan_out(request)) is None:
        return [RequestState(request, checkpoint, history, tokens)]
    assert not tokens
    states = [RequestState(one, checkpoint, history, parent=parent) for one in parent.requests]
    for one in states[1:]:
        one.leader = states[0]
    return states
