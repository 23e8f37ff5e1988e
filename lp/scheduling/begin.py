"""Begins the states of a request: one, or several for methods that make one text of many."""

from __future__ import annotations

from collections.abc import Sequence

from lp.drafting.history import DraftHistory
from lp.generation import RequestState
from lp.model.checkpoint import Checkpoint
from lp.request import Request


def begin(
    request: Request, checkpoint: Checkpoint, history: DraftHistory, tokens: Sequence[int] = ()
) -> list[RequestState]:
    """The states of a request's sequences, which all tell their output in its name.

    tokens: generated elsewhere, which must be replayed next; none for methods that begin anew.
    """
    if (parent := request.decode.fan_out(request)) is None:
        return [RequestState(request, checkpoint, history, tokens)]
    assert not tokens
    states = [RequestState(one, checkpoint, history, parent=parent) for one in parent.requests]
    for one in states[1:]:
        one.leader = states[0]
    return states
