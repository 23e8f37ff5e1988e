"""The oracle's tally: what was accepted, what was proposed and cut, and what nobody had proposed."""

from __future__ import annotations

import pytest

from benchmarks.shared.draft_oracle import OracleTally, WatchedDecoder, describe_oracle
from lp import Auto, Sampling, Stopping
from lp.drafting.history import DraftHistory
from lp.request import Request
from tests.lp.drafting.rule_models import Model, answers, counting, unguessable

PROMPT = [3, 4, 5]


def tally_on(model: Model, rows: int, num_tokens: int = 120) -> OracleTally:
    """The tally of a greedy text of a model; only suffixes are drafts."""
    text = list(PROMPT)
    for _ in range(num_tokens):
        text.append(model(tuple(text[-4:]), len(text) - 1)[0])
    decode = Auto(rows=rows, window_drafts=False, recycled_drafts=False)
    request = Request("one", PROMPT, decode, Sampling(temperature=0.0, seed=0), Stopping(num_tokens))
    tally, tokens = OracleTally(), list(PROMPT)
    decoder = WatchedDecoder(request, DraftHistory(), text[len(PROMPT) :], tally)
    while len(tokens) < len(text):
        tree = decoder.plan(tokens, room=1000, wanted=len(text) - len(tokens))
        accepted, _ = decoder.commit(tokens, answers(model, tree, tokens, decoder.num_candidates))
        tokens += accepted.tokens
    assert tokens == text and tally.tokens == num_tokens
    return tally


def test_what_the_rows_have_no_room_for_was_cut() -> None:
    """The model counts to 49 over and over, so from the second round on all that follows is proposed."""
    tally = tally_on(counting, rows=4)
    assert tally.unproposed == pytest.approx(47, abs=3) and tally.cut > 10
    assert set(tally.accepted) == {"suffix"}
    assert tally.oracle_tokens > 3 * tally.tokens
    assert "suffix" in describe_oracle({"auto, 4 rows": tally})


def test_more_rows_leave_less_cut() -> None:
    assert tally_on(counting, rows=32).cut < tally_on(counting, rows=4).cut


def test_what_nobody_proposes_is_beyond_the_oracle_too() -> None:
    tally = tally_on(unguessable, rows=16)
    assert tally.unproposed > 100 and tally.oracle_tokens < 1.2 * tally.steps
