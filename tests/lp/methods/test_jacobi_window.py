"""A Jacobi window of "auto" finds out how many guesses pay off, and never changes the text."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from lp import Engine, Jacobi, Sampling, Stopping
from lp.drafting.history import LONGEST_CHAIN, DraftHistory
from lp.methods.jacobi import JacobiDecoder
from lp.step_cost import StepTimes
from lp.tree import Answers, TokenTree
from tests.lp.decoders import make_decoder

# A row costs a tenth of a step.
TIMES = StepTimes((1, 65), (1.0, 7.4))


def sizes_of(answer: Callable[[TokenTree], np.ndarray], history: DraftHistory, num_steps: int = 4000) -> list[int]:
    """The number of guesses in each step of a text that the model continues by `answer`."""
    decoder = make_decoder(Jacobi("auto"), [7, 8, 9], 0, 0.0, history)
    tokens, sizes = [7, 8, 9], []
    for _ in range(num_steps):
        tree = decoder.plan(tokens, 1000, 1000)
        sizes.append(len(tree) - 1)
        tokens = (tokens + decoder.commit(tokens, Answers(answer(tree)))[0].tokens)[-9:]
    return sizes


def constant(tree: TokenTree) -> np.ndarray:
    return np.full(len(tree), 5)


def never_right(tree: TokenTree) -> np.ndarray:
    return np.arange(len(tree)) * 17 + int(tree.tokens[0]) * 31 % 1009


def test_guesses_that_are_never_right_cost_little() -> None:
    sizes = sizes_of(never_right, DraftHistory(TIMES))[-2000:]
    assert sizes.count(0) > len(sizes) / 2
    assert sum(TIMES.at(1 + size) for size in sizes) < 1.15 * len(sizes) * TIMES.at(1)


def test_guesses_that_are_right_become_more() -> None:
    sizes = sizes_of(constant, DraftHistory(TIMES))
    assert max(sizes) == LONGEST_CHAIN
    assert sum(sizes[-200:]) / 200 > 16


def test_the_longest_chain_is_used_where_rows_cost_little() -> None:
    sizes = sizes_of(constant, DraftHistory(StepTimes((1, 65), (1.02, 2.3))))
    assert sizes.count(LONGEST_CHAIN) > len(sizes) / 2


def test_later_requests_begin_with_what_was_learnt() -> None:
    history = DraftHistory(TIMES)
    before = sizes_of(constant, history)
    after = sizes_of(constant, history, num_steps=8)
    assert sum(after) / 8 > sum(before[:8]) / 8


def test_a_shorter_tree_leaves_the_later_guesses_as_they_are() -> None:
    decoder = JacobiDecoder(Jacobi(4), [7], 0)
    decoder.guesses = [1, 2, 3, 4]
    assert decoder.plan([7], room=1, wanted=9).tokens.tolist() == [7, 1]
    decoder.commit([7], Answers(np.array([30, 31])))
    assert decoder.guesses == [31, 3, 4, 7]


def test_the_text_is_that_of_a_fixed_window(llama: Engine) -> None:
    def text(decode: Jacobi) -> list[int]:
        stopping = Stopping(40, ignore_eos=True)
        return llama.generate([1, 2, 3, 4] * 5, decode=decode, sampling=Sampling.greedy(), stopping=stopping).token_ids

    assert text(Jacobi("auto")) == text(Jacobi(1)) == text(Jacobi(8))
