"""Where a text is in its grammar: it follows from the tokens alone, however they are reached."""

from __future__ import annotations

import random

import numpy as np
import pytest

from lp import Grammar
from lp.grammar.compiler import Grammars
from lp.grammar.settings import GrammarBackend
from lp.grammar.state import GrammarState
from lp.tree import DEAD_END, Answers, TreeBuilder, chain
from tests.models import EOS, VOCAB_SIZE, build_tokenizer

PROMPT = [5, 6, 7]
SCHEMA = Grammar.json_schema({"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]})


@pytest.fixture(scope="module", params=["llguidance", "xgrammar"])
def grammars(request: pytest.FixtureRequest) -> Grammars:
    pytest.importorskip(request.param, reason=f"{request.param} is not installed")
    return Grammars(build_tokenizer(), VOCAB_SIZE, [EOS], GrammarBackend(request.param))


def allowed(words: np.ndarray) -> list[int]:
    return np.flatnonzero(np.unpackbits(words.view(np.uint8), bitorder="little")).tolist()


def walk(state: GrammarState, rng: random.Random, length: int) -> list[int]:
    """A text that keeps the grammar, of at most so many tokens."""
    tokens = list(PROMPT)
    for _ in range(length):
        may_follow = [token for token in allowed(state.masks(chain(tokens[-1:]), tokens).words[0]) if token != EOS]
        if not may_follow:
            break
        tokens.append(rng.choice(may_follow))
    return tokens


def test_the_masks_of_a_tree_are_those_of_its_paths(grammars: Grammars) -> None:
    for seed in range(20):
        rng = random.Random(seed)
        tokens = walk(grammars.begin(SCHEMA, len(PROMPT)), rng, rng.randrange(6))
        builder = TreeBuilder(tokens[-1])
        for _ in range(12):
            text = walk(grammars.begin(SCHEMA, len(PROMPT)), rng, len(tokens) + 3)[len(tokens) :]
            row = 0
            for token in text or [rng.randrange(2, VOCAB_SIZE)]:
                row = builder.add(token, row)
        tree = builder.build()
        masks = grammars.begin(SCHEMA, len(PROMPT)).masks(tree, tokens)
        for row in range(len(tree)):
            path = [*tokens, *tree.tokens[tree.path(row)[1:]].tolist()]
            alone = grammars.begin(SCHEMA, len(PROMPT))
            keeps = all(alone.push(token) for token in path[len(PROMPT) :])
            assert masks.is_bound[row] == keeps
            expected = grammars.begin(SCHEMA, len(PROMPT)).masks(chain(path[-1:]), path).words[0] if keeps else None
            assert allowed(masks.words[row]) == (
                allowed(expected) if expected is not None else list(range(len(masks.words[row]) * 32))
            )


def test_a_state_moves_on_back_and_to_other_texts(grammars: Grammars) -> None:
    state, rng = grammars.begin(SCHEMA, len(PROMPT)), random.Random(3)
    texts = [walk(grammars.begin(SCHEMA, len(PROMPT)), rng, 9) for _ in range(4)]
    for _ in range(60):
        tokens = rng.choice(texts)
        tokens = tokens[: rng.randrange(len(PROMPT), len(tokens) + 1)]
        fresh = grammars.begin(SCHEMA, len(PROMPT))
        tree = chain(tokens[-1:])
        if len(tokens) > len(PROMPT) and rng.random() < 0.2:
            assert not state.push(0)  # it is of no use until it moves
        assert (state.masks(tree, tokens).words == fresh.masks(tree, tokens).words).all()


def test_what_must_follow(grammars: Grammars) -> None:
    state = grammars.begin(SCHEMA, len(PROMPT))
    forced = state.forced(30)
    text = build_tokenizer().decode([*forced.sure, *forced.likely])
    assert text.startswith('{"x": ') and len(state.forced(2).sure) <= 2
    assert state.forced(0) == ([], [])


def test_limits_that_drafts_reach_do_not_end_a_text(grammars: Grammars, monkeypatch: pytest.MonkeyPatch) -> None:
    """A matcher that has reached a limit is replaced by one that has seen the text alone."""
    state, tokens = grammars.begin(SCHEMA, len(PROMPT)), [*PROMPT]
    tree = chain([tokens[-1], *grammars.begin(SCHEMA, len(PROMPT)).forced(5).sure])
    expected = grammars.begin(SCHEMA, len(PROMPT)).masks(tree, tokens)
    walked = state._walk

    def broken(tree):
        for number, row in enumerate(walked(tree)):
            if number == 1:
                state._matcher.consume_token(0)  # an error, in which it stays
            yield row

    monkeypatch.setattr(state, "_walk", broken)
    found = state.masks(tree, tokens)
    assert (found.words == expected.words).all()
    monkeypatch.undo()
    assert (state.masks(tree, tokens).words == expected.words).all()


def test_bans_may_leave_nothing(grammars: Grammars) -> None:
    state = grammars.begin(Grammar.choice(["ab"]), len(PROMPT))
    masks = state.masks(chain(PROMPT[-1:]), PROMPT)
    first = allowed(masks.words[0])
    assert first
    answers = Answers(np.array([first[0]], np.int32), np.array([[first[0], 2, 3]], np.int32))
    masks.fix(answers)
    assert answers.targets.tolist() == [first[0]] and answers.candidates is not None
    assert set(answers.candidates[0].tolist()) <= set(first)
    masks.forbid([first])
    dead_end = Answers(np.array([0], np.int32))
    masks.fix(dead_end)
    assert dead_end.targets.tolist() == [DEAD_END]
