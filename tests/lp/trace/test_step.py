"""Traces as data: JSON, sizes, and numbers of ranks."""

from __future__ import annotations

import json
import random

import pytest

from lp import Auto, StepTrace
from lp.drafting.account import priors_of_sources
from lp.trace.step import LEGEND, LETTERS, OTHER, digit_of


def made_trace(num_nodes: int, num_accepted: int, seed: int = 0) -> StepTrace:
    """A trace of a random tree, whose accepted path is its nodes 1, 2, ..."""
    drawn = random.Random(seed)
    parents = [
        -1,
        *(row - 1 if row <= num_accepted else drawn.randrange(max(0, row - 9), row) for row in range(1, num_nodes)),
    ]
    tokens = [drawn.randrange(50_000) for _ in range(num_nodes)]
    accepted = [*range(1, num_accepted + 1)]
    emitted = [*tokens[1 : num_accepted + 1], 7]
    sources, ranks = "r" + "s" * (num_nodes - 1), "0" * num_nodes
    return StepTrace(3, tokens, parents, sources, ranks, accepted, emitted, num_nodes + 5, 2, 21.25, 20.5, [15, 5], 99)


def size(trace: StepTrace) -> int:
    return len(json.dumps(trace.to_dict(), separators=(",", ":")))


@pytest.mark.parametrize("num_nodes", [1, 2, 40, 128, 600])
@pytest.mark.parametrize("seed", range(5))
def test_a_cut_trace_keeps_the_accepted_path(num_nodes: int, seed: int) -> None:
    whole = made_trace(num_nodes, min(6, num_nodes - 1), seed)
    cut = whole.within(1000)
    assert size(cut) <= 1000
    assert cut.omitted == len(whole.tokens) - len(cut.tokens) and (cut == whole) == (size(whole) <= 1000)
    assert cut.emitted == whole.emitted and cut[7:13] == whole[7:13]
    assert [cut.tokens[row] for row in cut.accepted] == cut.emitted[:-1]
    assert cut.parents[0] == -1 and all(0 <= parent < row for row, parent in enumerate(cut.parents) if row)
    assert paths(cut) <= paths(whole)
    left = depths(whole)[len(cut.tokens) :] if cut.omitted else []
    assert not left or max(depths(cut)) <= max(depths(whole))
    if cut.omitted:  # and no more is left out than must be: another node would be of about twenty bytes
        assert size(cut) > 1000 - 60


def paths(trace: StepTrace) -> set[tuple[int, ...]]:
    found: list[tuple[int, ...]] = []
    for token, parent in zip(trace.tokens, trace.parents, strict=True):
        found.append((*(found[parent] if parent >= 0 else ()), token))
    return set(found)


def depths(trace: StepTrace) -> list[int]:
    return sorted(len(path) for path in paths(trace))


def test_the_deepest_nodes_go_first() -> None:
    whole = made_trace(300, 0, seed=4)
    cut = whole.within(1000)
    assert depths(cut) == depths(whole)[: len(cut.tokens)]


def test_what_is_accepted_stays_even_if_it_is_too_large() -> None:
    cut = made_trace(400, 150).within(1000)
    assert len(cut.accepted) == 150 and len(cut.tokens) == 151 and cut.omitted == 249


def test_a_trace_is_read_back_as_it_was() -> None:
    trace = made_trace(30, 3)
    assert StepTrace.from_dict(json.loads(json.dumps(trace.to_dict()))) == trace
    with pytest.raises(TypeError):
        StepTrace.from_dict({"step": 1})


def test_ranks_are_renamed() -> None:
    trace = made_trace(4, 0)._replace(ranks="0120")
    assert trace.among([2, 0, 40]).ranks == "20*2"
    assert [digit_of(rank) for rank in (0, 9, 10, 35, 36)] == ["0", "9", "a", "z", "*"]


def test_every_source_has_a_letter() -> None:
    for source in priors_of_sources(Auto()):
        assert LETTERS[source] != OTHER, f"{source} needs a letter in lp/trace/step.py"
    assert LETTERS["a source from elsewhere"] == OTHER
    assert set(LETTERS.values()) | {OTHER} == LEGEND.keys() and len(set(LEGEND.values())) == len(LEGEND)
