"""Many sequences come, grow and end on replicas with few pages: no step needs more than a replica has, and all end."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lp.kv_cache.cache import PAGE, pages_of
from lp.runner.runner import Home, StepInput
from lp.scheduling.kv_budget import KVBudget
from lp.tree import NO_ROWS
from parallel.runners.assignment import Assignment, Balanced, Pinned
from parallel.runners.followers import drop_most_lagging
from parallel.runners.rooms import Rooms
from parallel.runners.shares import KnownTokens, Shares
from tests.parallel.runners.test_assignment import sequence, tree_of

MOST_ROWS = 9
CHUNK = 200


class Growing:
    """A request: its sequence, which grows up to a length, and how much of it has been computed."""

    def __init__(self, name: str, num_tokens: int, most: int):
        self.sequence, self.most, self.num_computed = sequence(name, num_tokens), most, 0

    @property
    def num_slots(self) -> int:
        return len(self.sequence.tokens) - 1 + MOST_ROWS


class Replicas:
    """Replicas that share batches as LookaheadParallel does, and hold nothing but counts of tokens."""

    def __init__(self, num_pages: int, num_replicas: int, assignment: Assignment):
        self.num_pages, self.assignment = num_pages, assignment
        self.room = KVBudget(num_pages, num_replicas, assignment.moves_sequences)
        self.rooms = Rooms(num_pages, num_replicas, assignment.moves_sequences)
        self.known: dict[str, KnownTokens] = {}

    def owner_of(self, one: Growing) -> int | None:
        bound, known = self.assignment.owner_of(one.sequence.id), self.known.get(one.sequence.id)
        return known.owner if bound is None and known else bound

    def drop(self, name: str) -> None:
        self.known.pop(name, None)
        self.assignment.forget(name)

    def place(self, running: list[Growing]) -> list[Growing]:
        placed = self.room.placed(running, self.owner_of)
        self.rooms.arrange({one.sequence.id: Home(place, pages_of(one.num_slots)) for one, place in placed})
        return [one for one, _ in placed]

    def start(self, steps: list[StepInput]) -> None:
        known = [self.known.setdefault(step.sequence.id, KnownTokens(self.room.num_replicas)) for step in steps]
        numbers = [list(one.count(step.sequence.tokens)) for one, step in zip(known, steps, strict=True)]
        all_shares = self.assignment.assign(steps, self.rooms.barred(steps, numbers))
        needed: Counter[int] = Counter()
        for one, step, shares in zip(known, steps, all_shares, strict=True):
            one.note(step.tree, len(step.sequence.tokens), shares)
            for replica, rows in shares.rows.items():
                needed[replica] += pages_of(step.num_computed + len(rows))
            for replica, num_computed in shares.feeds.items():
                needed[replica] += pages_of(num_computed)
        assert max(needed.values()) <= self.num_pages, "a step has no room"
        busy = {step.sequence.id: shares for step, shares in zip(steps, all_shares, strict=True)}
        drop_most_lagging(self.known, busy, self.rooms)
        for replica in range(self.room.num_replicas):
            idle = [name for name in self.known if name not in busy or _rests(replica, busy[name])]
            held = sum(pages_of(self.known[name].numbers[replica]) for name in idle)
            assert needed[replica] + held <= self.num_pages, "caches that are not in the step must not be in its way"


def _rests(replica: int, shares: Shares) -> bool:
    return replica not in shares.rows and replica not in shares.feeds


def serve(replicas: Replicas, rng: random.Random, number: int, most_turns: int) -> tuple[int, int]:
    """Serves some requests. Returns the most that had room at the same time, and the number of those that lost it."""
    longest = replicas.num_pages * PAGE - MOST_ROWS
    coming, running, most, num_lost, num_steps = list(range(number)), list[Growing](), 0, 0, 0
    while coming or running:
        num_steps += 1
        assert num_steps < 3000, "nobody goes on"
        if coming and rng.random() < 0.5:
            length = rng.randrange(2, longest)
            running.append(Growing(str(coming.pop(0)), length, min(longest, length + rng.randrange(1, 60))))
        fitting = replicas.place(running)
        most = max(most, len(fitting))
        for one in running:
            if one not in fitting and one.num_computed:
                replicas.drop(one.sequence.id)
                one.num_computed, num_lost = 0, num_lost + 1
        fitting = replicas.place(running)
        taking = rng.sample(fitting, min(len(fitting), most_turns))
        steps = [_step(one, rng) for one in sorted(taking, key=running.index)]
        if steps:
            replicas.start(steps)
        for one, step in zip(sorted(taking, key=running.index), steps, strict=True):
            one.num_computed = step.num_computed
            if len(step.tree):
                one.sequence.tokens += [1] * rng.randrange(1, 12)
                one.num_computed = len(one.sequence.tokens) - 1
            if len(one.sequence.tokens) >= one.most:
                running.remove(one)
                replicas.drop(one.sequence.id)
    return most, num_lost


def _step(one: Growing, rng: random.Random) -> StepInput:
    tokens = one.sequence.tokens
    num_computed = min(len(tokens) - 1, one.num_computed + CHUNK)
    tree = tree_of(rng.randrange(1, MOST_ROWS + 1), 3) if num_computed == len(tokens) - 1 else NO_ROWS
    return StepInput(one.sequence, tree, num_computed, is_shared=rng.random() < 0.8)


@given(st.integers(0, 10_000), st.integers(1, 6), st.integers(2, 4), st.sampled_from([Balanced, Pinned]), st.booleans())
def test_no_step_needs_more_than_a_replica_has(
    seed: int, num_pages: int, num_replicas: int, mode: type[Assignment], all_at_once: bool
) -> None:
    replicas = Replicas(num_pages, num_replicas, mode())
    serve(replicas, random.Random(seed), 8, 99 if all_at_once else 3)
    assert not replicas.known


@pytest.mark.parametrize(("mode", "seed"), [(Balanced, 3), (Pinned, 1)])
def test_all_replicas_are_used_and_who_has_grown_too_large_gives_way(mode: type[Assignment], seed: int) -> None:
    most, num_lost = serve(Replicas(2, 3, mode()), random.Random(seed), 40, 99)
    assert most > 2 and num_lost > 0
