"""Trees under a grammar: no draft breaks it, and tokens that must follow are drafts, within the room there is."""

from __future__ import annotations

import pytest

from benchmarks.structured.schemas import make_schema
from lp import Auto, Engine, Grammar, Jacobi, Lookahead, PromptLookup, Sampling
from lp.request import DecodingMethod
from lp.runner.runner import StepInput
from lp.runner.single_device import Pending, SingleDevice

GRAMMAR = Grammar.json_schema(make_schema(3))


class Watched(SingleDevice):
    """Keeps the sequence and the tree of each step."""

    def __init__(self, engine: Engine):
        super().__init__(engine.checkpoint.model)
        self.steps: list[tuple[list[int], StepInput]] = []

    def launch(self, steps: list[StepInput]) -> Pending:
        self.steps += [(list(step.sequence.tokens), step) for step in steps]
        return super().launch(steps)


def run(llama: Engine, decode: DecodingMethod, **settings) -> Watched:
    runner = Watched(llama)
    engine = Engine(llama.checkpoint, runner)
    prompt = engine.checkpoint.tokenizer.encode('{"a": [{"b": 1}, {"b": 2}], "c": "def add(first, second)"}')
    sampling = Sampling(temperature=0.8, seed=2)
    engine.generate(prompt, decode=decode, sampling=sampling, grammar=GRAMMAR, **{"max_new_tokens": 60, **settings})
    return runner


@pytest.mark.parametrize("decode", [Auto(max_window=0), Auto(rows=30, max_window=0), PromptLookup()], ids=str)
def test_no_draft_breaks_the_grammar(decode: DecodingMethod, llama: Engine) -> None:
    runner = run(llama, decode)
    prompt_length = runner.steps[0][1].sequence.prompt_length
    for tokens, step in runner.steps:
        tree = step.tree
        for row in range(1, len(tree)):
            state = llama.checkpoint.grammars.begin(GRAMMAR, prompt_length)
            path = [*tokens[prompt_length:], *tree.tokens[tree.path(row)[1:]].tolist()]
            assert all(state.push(token) for token in path)
        paths = {tuple(tree.tokens[tree.path(row)].tolist()) for row in range(len(tree))}
        assert len(paths) == len(tree), "no row is computed twice"
    assert sum(len(step.tree) - 1 for _, step in runner.steps) > len(runner.steps)


@pytest.mark.parametrize("decode", [Auto(), Lookahead(4, 3, 4), PromptLookup(), Jacobi(5)], ids=lambda how: how.method)
def test_trees_keep_to_the_room_and_to_the_tokens_that_are_wanted(decode: DecodingMethod, llama: Engine) -> None:
    for most_tokens in (1, 2, 7):
        runner = run(llama, decode, max_new_tokens=most_tokens)
        length = runner.steps[0][1].sequence.prompt_length
        for tokens, step in runner.steps:
            left = most_tokens - (len(tokens) - length)
            drafts = step.tree.depths if not isinstance(decode, Auto | Lookahead) else step.tree.depths[:1]
            assert drafts.max() <= max(0, left - 1)
            assert len(step.tree) <= decode.most_rows(has_grammar=True)
