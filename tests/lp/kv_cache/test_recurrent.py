"""The states of recurrent layers: which rows are kept, after how many tokens a state is known, and what is shared."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from lp.kv_cache.recurrent import MOST_SNAPSHOTS, MOST_STATES, SPACING, RecurrentStates, State, copied_length

LAYERS = (0, 2)


class Told:
    """A step of a layer whose state is the list of all tokens."""

    def __init__(self, states: RecurrentStates, layer: int, tokens: Sequence[int], certain: Sequence[int]):
        self.tokens = tokens
        self.before = states.state(layer) or (torch.zeros(0, dtype=torch.int64),)
        self.passed = {number: self._add(self.before, tokens[:number]) for number in (0, *certain)}

    def replay(self, state: State, rows: Sequence[int]) -> State:
        return self._add(state, [self.tokens[row] for row in rows])

    @staticmethod
    def _add(state: State, tokens: Sequence[int]) -> State:
        return (torch.cat([state[0], torch.tensor(tokens, dtype=torch.int64)]),)


def step(states: RecurrentStates, tokens: Sequence[int], rows: Sequence[int], certain: Sequence[int] = ()) -> int:
    for layer in LAYERS:
        states.note(layer, Told(states, layer, tokens, certain))
    return states.keep(rows)


def text_of(states: RecurrentStates) -> list[int]:
    texts = [[] if (state := states.state(layer)) is None else state[0].tolist() for layer in LAYERS]
    assert texts[0] == texts[1]
    return texts[0]


def fill(states: RecurrentStates, length: int) -> None:
    """Adds tokens, each of which is its own number, in steps of 10."""
    for begin in range(len(text_of(states)), length, 10):
        tokens = range(begin, min(begin + 10, length))
        assert step(states, tokens, range(len(tokens))) == len(tokens)


def test_the_rows_of_a_path_are_kept_and_no_others() -> None:
    states = RecurrentStates()
    assert text_of(states) == []
    assert step(states, [5, 6, 7, 8], [0, 1, 3]) == 3
    assert text_of(states) == [5, 6, 8]
    assert step(states, [9, 10], []) == 0 and text_of(states) == [5, 6, 8]


def test_a_path_that_ends_within_the_first_rows_is_kept_as_far_as_a_state_is_known() -> None:
    for rows, kept in ((range(5), 5), (range(4), 4), (range(3), 2), ([0, 1, 2, 3, 5], 5), ([0, 1], 2), ([0], 0)):
        states = RecurrentStates()
        assert step(states, [0, 1, 2, 3, 4, 5], rows, certain=(2, 4)) == kept
        assert text_of(states) == list(rows)[:kept]


def test_fewer_tokens_are_those_of_the_last_snapshot() -> None:
    states = RecurrentStates(mark=300)
    fill(states, 3 * SPACING - 5)
    for length, left in ((750, 512), (400, 300), (300, 300), (299, 256), (255, 0)):
        copy, found = states.fork(length)
        assert found == left and text_of(copy) == list(range(left))
        fill(copy, left + 7)  # which changes nothing of the other one
        assert text_of(copy) == list(range(left + 7))
    assert text_of(states) == list(range(3 * SPACING - 5))
    assert states.shorten(310) == 300 and states.shorten(511) == 300, "snapshots of what was dropped are gone"


def test_what_is_held_can_be_gone_back_to() -> None:
    states = RecurrentStates()
    fill(states, 33)
    states.hold()
    assert step(states, [90, 91], [0, 1]) == 2
    assert states.shorten(33) == 33 and text_of(states) == list(range(33))
    states.clear()
    assert text_of(states) == [] and states.shorten(33) == 0 and not states.num_bytes


def test_the_number_of_snapshots_is_bounded_and_copies_are_as_long_as_said() -> None:
    states = RecurrentStates(mark=1000)
    fill(states, 2 * MOST_SNAPSHOTS * SPACING + 100)
    assert len(list(states._all())) <= MOST_STATES + 1  # that after no token takes no memory
    length = len(text_of(states))
    for wanted in (3, 700, 999, 1000, 1023, 1024, 2500, length - 1, length, length + 1):
        assert states.fork(wanted)[1] == copied_length(wanted, length, 1000)


def test_snapshots_may_lie_among_the_first_rows_of_a_step() -> None:
    states, tokens = RecurrentStates(mark=40), range(600)
    assert states.stops(0, 600) == [40, 256, 512]
    assert step(states, tokens, tokens, certain=(40, 256, 512, 576)) == 600
    assert [states.fork(length)[1] for length in (600, 599, 300, 50)] == [600, 512, 256, 40]
