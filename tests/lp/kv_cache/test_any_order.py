"""Whatever is done to sequences, in whatever order: no page is lost, and each sequence reads what it has written.

Hypothesis chooses what is done, and gives the shortest way to a failure. The pages of a sequence lie anywhere, for
kernels with block tables, or they are consecutive, for those that read from a first slot on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count, pairwise

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from lp.kv_cache.arena import Arena, PageAllocator, PagedCache
from lp.kv_cache.cache import PAGE, OutOfRoom, pages_of
from tests.lp.kv_cache.test_arena import SHAPES, make_arena, run_step
from tests.slow import slow_except

# Rows of a step: few, or about as many as a page has.
ROWS = st.one_of(st.integers(1, 9), st.integers(PAGE - 9, PAGE + 9))


@dataclass
class Known:
    """A sequence. tokens: what it must hold. rows: those of its last step, of which none has been kept yet."""

    cache: PagedCache
    tokens: list[int] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)


class Sequences(RuleBasedStateMachine):
    """Sequences in an arena that is too small for them. opened: how many there have been, in all runs."""

    opened = 0
    sequences: Bundle[Known] = Bundle("sequences")
    arena: Arena
    num_pages: int

    def __init__(self) -> None:
        super().__init__()
        self.known: list[Known] = []  # the one that was used least recently is first
        self.numbers = count()  # every row has a number of its own

    @initialize(num_pages=st.integers(2, 6))
    def begin(self, num_pages: int) -> None:
        self.arena, self.num_pages = make_arena(num_pages), num_pages

    def add(self, known: Known) -> Known:
        Sequences.opened += 1
        self.known.append(known)
        return known

    @contextmanager
    def may_evict(self, *besides: Known) -> Iterator[None]:
        """Sequences that are evicted are those that were used least recently, and hold nothing then."""
        held = {id(known): known.cache.num_pages for known in self.known}
        yield
        evicted = [known for known in self.known if known.cache.take_eviction()]
        for known in evicted:
            assert known.cache.length == known.cache.num_pages == 0
            known.tokens, known.rows = [], []
        others = [known for known in self.known if held[id(known)] and not any(known is one for one in besides)]
        assert all(one is other for one, other in zip(evicted, others)), "another one was used less recently"

    @rule(target=sequences)
    def open(self) -> Known:
        return self.add(Known(self.arena.open()))

    @rule(known=sequences, num_rows=ROWS)
    def write(self, known: Known, num_rows: int) -> None:
        """A step, which does not fit if the sequence is as long as the arena."""
        rows = [next(self.numbers) for _ in range(num_rows)]
        self.known = [*(one for one in self.known if one is not known), known]
        first, last = len(known.tokens) // PAGE, pages_of(len(known.tokens) + num_rows)
        with self.may_evict(known):
            try:
                assert run_step(known.cache, rows) == known.tokens + rows
            except OutOfRoom:
                assert last > self.num_pages and not any(one.cache.was_evicted for one in self.known), "evicted in vain"
                return
        assert last <= self.num_pages
        known.rows = rows
        written = known.cache.pages[first:last]
        assert not any(self.arena.allocator.is_shared(page) for page in written), "a page is written that is shared"

    @rule(step=st.lists(st.tuples(sequences, ROWS), min_size=2, max_size=4, unique_by=lambda one: id(one[0])))
    def write_together(self, step: list[tuple[Known, int]]) -> None:
        """A step of several sequences: if their needs fit together, none of them is evicted for another one."""
        stepping = [known for known, _ in step]
        self.known = [*(one for one in self.known if not any(one is known for known in stepping)), *stepping]
        ends = [len(known.tokens) + num_rows for known, num_rows in step]
        full = {page for known in stepping for page in known.cache.pages[: len(known.tokens) // PAGE]}
        needed = len(full) + sum(pages_of(end) for end in ends) - sum(len(known.tokens) // PAGE for known in stepping)
        with self.may_evict(*stepping):
            try:
                self.arena.reserve([(known.cache, num_rows) for known, num_rows in step])
            except OutOfRoom:
                assert needed > self.num_pages and not any(one.cache.was_evicted for one in self.known)
                return
            for known, num_rows in step:
                known.rows = [next(self.numbers) for _ in range(num_rows)]
                assert run_step(known.cache, known.rows) == known.tokens + known.rows
            assert needed <= self.num_pages and not any(known.cache.was_evicted for known in stepping)

    @rule(known=sequences, num_pages=st.integers(1, 6))
    def fill(self, known: Known, num_pages: int) -> None:
        """A prompt that fills its last page."""
        if (missing := min(num_pages, self.num_pages) * PAGE - len(known.tokens)) > 0:
            self.write(known, missing)
            known.cache.keep(range(missing))
            known.tokens, known.rows = known.tokens + known.rows, []

    @rule(known=sequences, data=st.data())
    def keep(self, known: Known, data: st.DataObject) -> None:
        """An accepted path: the first rows, or scattered ones."""
        num_rows = len(known.rows)
        first = st.integers(0, num_rows).map(range)
        scattered = st.sets(st.integers(0, max(0, num_rows - 1)), max_size=min(9, num_rows)).map(sorted)
        kept = list(data.draw(st.one_of(first, scattered)))
        known.cache.keep(kept)
        known.tokens += [known.rows[row] for row in kept]
        known.rows = []

    @rule(known=sequences, data=st.data())
    def cut(self, known: Known, data: st.DataObject) -> None:
        self.cut_to(known, data.draw(st.integers(0, len(known.tokens))))

    def cut_to(self, known: Known, length: int) -> None:
        known.cache.length = length
        del known.tokens[length:]
        known.rows = []

    @rule(target=sequences, known=sequences)
    def fork(self, known: Known) -> Known:
        return self.fork_of(known)

    def fork_of(self, known: Known) -> Known:
        """There is room if all others may be evicted for it; otherwise the copy is an empty sequence here."""
        wanted = pages_of(known.cache.length) - known.cache.length // PAGE
        with self.may_evict(known):
            try:
                copy = Known(known.cache.fork(), list(known.tokens))
            except OutOfRoom:
                assert wanted > self.most_beside(known)
                copy = Known(self.arena.open())
            else:
                assert wanted <= self.most_beside(known)
        return self.add(copy)

    @rule(target=sequences, known=sequences, at=st.integers(0, 2 * PAGE), num_rows=ROWS)
    def branch(self, known: Known, at: int, num_rows: int) -> Known:
        """The sequence goes on from an earlier token, and a fork of it stays."""
        copy = self.fork_of(known)
        self.cut_to(known, min(at, len(known.tokens)))
        self.write(known, num_rows)
        return copy

    def most_beside(self, known: Known) -> int:
        """The most pages that there can be beside those of a sequence."""
        ends = [0, *known.cache.pages, self.num_pages + 1]
        gaps = [after - before - 1 for before, after in pairwise(sorted(ends))]
        return sum(gaps)

    @rule(known=sequences)
    def evict(self, known: Known) -> None:
        known.cache.evict()
        assert known.cache.take_eviction() and not known.cache.take_eviction()
        known.tokens, known.rows = [], []

    @rule(known=consumes(sequences), is_dropped=st.booleans())
    def close(self, known: Known, is_dropped: bool) -> None:
        """Releases a sequence, or forgets it, which gives its pages back, too."""
        self.known = [one for one in self.known if one is not known]
        if not is_dropped:
            known.cache.release()
        del known.cache

    @invariant()
    def every_page_is_free_or_held(self) -> None:
        users = Counter(page for known in self.known for page in known.cache.pages)
        allocator = self.arena.allocator
        assert set(users) <= set(range(1, self.num_pages + 1)) and allocator.num_free == self.num_pages - len(users)
        assert {page for page, number in users.items() if number > 1} == set(filter(allocator.is_shared, users))
        assert self.arena.num_used == users.total()

    @invariant()
    def every_sequence_holds_what_was_written(self) -> None:
        for known in self.known:
            expected = np.asarray(known.tokens + known.rows)
            assert known.cache.length == len(known.tokens)
            places = np.arange(len(expected))
            for source, target in zip(*known.cache.moves, strict=True):  # what the next step copies before it begins
                places[target : target + 1] = source
            slots = known.cache.slots(places)
            for layer in SHAPES:
                keys, values = (stores[layer].flatten(0, 1).numpy() for stores in (self.arena.keys, self.arena.values))
                assert (keys[slots, 0, 0] == expected).all() and (values[slots, 0, -1] == -expected).all()

    def teardown(self) -> None:
        for known in self.known:
            known.cache.release()
            assert known.cache.num_pages == 0
        assert self.arena.allocator.num_free == self.num_pages and self.arena.num_used == 0


@pytest.mark.parametrize(("num_sequences", "num_orders"), slow_except([(200, 22), (1000, 100)], (200, 22)))
def test_many_sequences_leave_no_page_behind(num_sequences: int, num_orders: int) -> None:
    before = Sequences.opened
    run_state_machine_as_test(Sequences, settings=settings(max_examples=num_orders, stateful_step_count=60))
    assert Sequences.opened - before >= num_sequences


class Pages(RuleBasedStateMachine):
    """Pages alone: held by users, who take, share and give them back."""

    users: Bundle[list[int]] = Bundle("users")

    def __init__(self) -> None:
        super().__init__()
        self.pages = PageAllocator(12, num_reserved=1)
        self.held: list[list[int]] = []

    def add(self, pages: list[int]) -> list[int]:
        self.held.append(pages)
        return pages

    @rule(target=users, number=st.integers(0, 5))
    def take(self, number: int) -> list[int]:
        return self.add(self.taken(number, None))

    @rule(user=users, number=st.integers(1, 5))
    def grow(self, user: list[int], number: int) -> None:
        user += self.taken(number, user[-1] if user else None)

    def taken(self, number: int, after: int | None) -> list[int]:
        """As many pages as that, none of which was in use; none at all if there are not as many."""
        free = set(range(1, 12)) - {page for user in self.held for page in user}
        found = self.pages.take(number, after)
        starts = range(12) if after is None else [after + 1]
        in_run = any(free >= set(range(start, start + number)) for start in starts)
        assert (found is not None) == (len(free) >= number)
        assert found is None or (set(found) <= free and len(set(found)) == number)
        if found and in_run:
            assert found == list(range(found[0], found[0] + number)) and found[0] in starts
        return found or []

    @rule(target=users, user=users, number=st.integers(0, 5))
    def share(self, user: list[int], number: int) -> list[int]:
        return self.add(self.pages.share(user[:number]))

    @rule(user=consumes(users))
    def give_back(self, user: list[int]) -> None:
        self.held = [one for one in self.held if one is not user]
        self.pages.give_back(user)
        assert user == []

    @invariant()
    def pages_have_as_many_users_as_hold_them(self) -> None:
        users = Counter(page for user in self.held for page in user)
        assert self.pages.num_free == 11 - len(users)
        assert {page for page in range(1, 12) if self.pages.is_shared(page)} == {
            page for page in users if users[page] > 1
        }


def test_pages_are_never_lost_nor_given_out_twice() -> None:
    run_state_machine_as_test(Pages, settings=settings(max_examples=50, stateful_step_count=40))
