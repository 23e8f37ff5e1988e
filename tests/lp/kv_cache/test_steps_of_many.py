"""Steps of several sequences whose memory is bounded: what fits never fails, and none of the step is evicted."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count

import pytest
import torch
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

from lp.kv_cache.cache import PAGE, OutOfRoom, pages_of
from lp.kv_cache.contiguous import ContiguousCache, ContiguousMemory
from tests.lp.kv_cache.test_any_order import ROWS
from tests.lp.kv_cache.test_contiguous import LAYERS, contents, rows_of


@dataclass
class Known:
    """A sequence, and the tokens that its cache must hold."""

    cache: ContiguousCache
    tokens: list[int] = field(default_factory=list)


class Steps(RuleBasedStateMachine):
    """Sequences in a memory that is too small for all of them."""

    sequences: Bundle[Known] = Bundle("sequences")
    memory: ContiguousMemory

    def __init__(self) -> None:
        super().__init__()
        self.known: list[Known] = []
        self.numbers = count()

    @initialize(num_pages=st.integers(2, 9))
    def begin(self, num_pages: int) -> None:
        self.memory = ContiguousMemory(LAYERS, num_pages)

    @rule(target=sequences, capacity=st.integers(0, 3 * PAGE))
    def open(self, capacity: int) -> Known:
        self.known.append(Known(self.memory.open(capacity)))
        return self.known[-1]

    @rule(
        step=st.lists(st.tuples(sequences, ROWS), min_size=1, max_size=4, unique_by=lambda one: id(one[0])),
        share_kept=st.sampled_from([0.0, 0.5, 1.0]),
    )
    def take_step(self, step: list[tuple[Known, int]], share_kept: float) -> None:
        needed = sum(pages_of(len(known.tokens) + num_rows) for known, num_rows in step)
        try:
            self.memory.reserve([(known.cache, num_rows) for known, num_rows in step])
        except OutOfRoom:
            assert needed > self.memory.num_pages and not any(one.cache.was_evicted for one in self.known)
            return
        assert needed <= self.memory.num_pages
        assert not any(known.cache.was_evicted for known, _ in step)
        for known, num_rows in step:
            assert known.cache.capacity >= len(known.tokens) + num_rows
            self.write(known, num_rows, int(share_kept * num_rows))

    @torch.inference_mode()
    def write(self, known: Known, num_rows: int, num_kept: int) -> None:
        rows = [next(self.numbers) for _ in range(num_rows)]
        for layer in range(LAYERS):
            keys, _ = known.cache.update(rows_of(rows), -rows_of(rows), layer)
            assert keys[0, 0, :, 0].int().tolist() == known.tokens + rows
        known.cache.keep(range(num_kept))
        known.tokens += rows[:num_kept]

    @rule(known=sequences)
    def cut(self, known: Known) -> None:
        known.cache.length = len(known.tokens) // 2
        del known.tokens[known.cache.length :]

    @rule(known=consumes(sequences))
    def close(self, known: Known) -> None:
        self.known = [one for one in self.known if one is not known]
        known.cache.release()

    @invariant()
    def memory_is_bounded_and_nothing_is_lost(self) -> None:
        for known in self.known:
            if known.cache.take_eviction():
                assert known.cache.length == known.cache.num_pages == 0
                known.tokens = []
            assert known.cache.length == len(known.tokens)
            if known.tokens:
                keys = known.cache.keys[LAYERS - 1]
                assert keys.shape[2] == known.cache.num_pages * PAGE
                assert keys[0, 0, : len(known.tokens), 0].int().tolist() == known.tokens
        if self.known:
            held = sum(known.cache.num_pages for known in self.known)
            assert held == self.memory.num_used <= self.memory.num_pages


def test_steps_that_fit_never_fail_and_lose_no_sequence() -> None:
    run_state_machine_as_test(Steps, settings=settings(max_examples=80, stateful_step_count=40))


def filled(memory: ContiguousMemory, num_tokens: int) -> ContiguousCache:
    cache = memory.open(1)
    cache.reserve(num_tokens)
    for layer in range(LAYERS):
        cache.update(rows_of([7] * num_tokens), -rows_of([7] * num_tokens), layer)
    cache.keep(range(num_tokens))
    return cache


def test_room_that_was_granted_beyond_the_need_is_given_back() -> None:
    memory = ContiguousMemory(LAYERS, 6)
    one, two = filled(memory, PAGE), filled(memory, PAGE)
    one.reserve(1)
    one.reserve(PAGE + 1)
    assert one.num_pages == 4, "else there is nothing to give back"
    memory.reserve([(one, 1), (two, 3 * PAGE)])
    assert (one.num_pages, two.num_pages) == (2, 4) and not one.was_evicted and not two.was_evicted
    assert contents(one) == [7] * PAGE


def test_others_are_evicted_before_anything_is_given_back() -> None:
    memory = ContiguousMemory(LAYERS, 6)
    other, one, two = (filled(memory, PAGE) for _ in range(3))
    memory.reserve([(one, 1), (two, 1), (other, 0)])
    assert not other.was_evicted, "all three fit"
    memory.reserve([(one, PAGE + 1), (two, PAGE + 1)])
    assert other.was_evicted and (one.num_pages, two.num_pages) == (3, 3)


def test_a_step_that_cannot_fit_evicts_nobody() -> None:
    memory = ContiguousMemory(LAYERS, 4)
    caches = [filled(memory, PAGE) for _ in range(3)]
    with pytest.raises(OutOfRoom, match=r"a step needs 1,536 tokens of keys and values, and there is room for 1,024"):
        memory.reserve([(cache, PAGE) for cache in caches])
    assert not any(cache.was_evicted for cache in caches)


def test_a_fork_never_evicts_what_it_is_made_of() -> None:
    memory = ContiguousMemory(LAYERS, 3)
    cache, other = filled(memory, PAGE), filled(memory, PAGE)
    copies = [cache.fork(), cache.fork()]
    assert other.was_evicted and not cache.was_evicted and memory.num_used == 3
    assert all((copy.keys[0][0, 0, :, 0] == 7).all() and copy.length == PAGE for copy in copies)
