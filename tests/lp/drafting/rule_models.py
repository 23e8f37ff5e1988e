"""Models that follow simple rules, and runs of decoders on them in modelled time."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from lp.decoder import Decoder
from lp.drafting.history import DraftHistory
from lp.methods.auto.method import Auto
from lp.step_cost import StepTimes
from lp.tree import Answers, TokenTree
from tests.lp.decoders import make_decoder

VOCAB_SIZE = 1000
CANDIDATES = 8
PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]

# Gives the best tokens, best first. Its arguments are the last tokens of a path and the position of the very last one.
Model = Callable[[tuple[int, ...], int], list[int]]


def by_rule(next_token: Callable[[tuple[int, ...]], int]) -> Model:
    """A model whose best token follows the rule; its other candidates are always the same."""

    def answer(path: tuple[int, ...], position: int) -> list[int]:
        return [next_token(path), *range(900, 900 + CANDIDATES - 1)]

    return answer


def unguessable(path: tuple[int, ...], position: int) -> list[int]:
    """A model of random text: what came before does not help to guess what follows."""
    rng = random.Random(hash((path, position)))
    return [rng.randrange(VOCAB_SIZE) for _ in range(CANDIDATES)]


def counting(path: tuple[int, ...], position: int) -> list[int]:
    """A model that counts to 49 over and over."""
    return by_rule(lambda path: (path[-1] + 1) % 50)(path, position)


def sums(path: tuple[int, ...], position: int) -> list[int]:
    """A model whose next token depends on the sum of the last three."""
    return by_rule(lambda path: (sum(path[-3:]) * 7 + 1) % 800)(path, position)


@dataclass
class Run:
    """A decoder's run on a model.

    seconds: modelled time of all steps. rows, fingerprints: one entry for each step. accepted, proposed: number of
    drafts by source. num_plain: number of steps that asked for no candidates.
    """

    tokens: list[int]
    prompt_length: int
    seconds: float = 0.0
    rows: list[int] = field(default_factory=list)
    accepted: Counter[str] = field(default_factory=Counter)
    proposed: Counter[str] = field(default_factory=Counter)
    fingerprints: list[int] = field(default_factory=list)
    num_plain: int = 0

    @property
    def num_new(self) -> int:
        return len(self.tokens) - self.prompt_length

    @property
    def tokens_per_step(self) -> float:
        return self.num_new / len(self.rows)


def answers(model: Model, tree: TokenTree, tokens: list[int], num_candidates: int) -> Answers:
    """The model's answers for all rows of a tree whose root is the last of `tokens`."""
    best = np.empty((len(tree), CANDIDATES), dtype=np.int64)
    for row in range(len(tree)):
        path = (*tokens[-4:-1], *tree.tokens[tree.path(row)].tolist())
        best[row] = model(path[-4:], len(tokens) - 1 + int(tree.depths[row]))
    return Answers(best[:, 0].copy(), best[:, :num_candidates] if num_candidates else None)


def decode(
    model: Model,
    num_tokens: int,
    settings: Auto,
    times: StepTimes | None = None,
    history: DraftHistory | None = None,
    owner: str | None = None,
    prompt: list[int] = PROMPT,
    temperature: float = 0.0,
    fingerprints: bool = False,
) -> Run:
    """Runs a decoder until it has generated `num_tokens` tokens, and checks that they are the model's."""
    history = history or DraftHistory(times)
    decoder: Decoder = make_decoder(settings, prompt, 0, temperature, history, owner)
    run = Run(list(prompt), len(prompt))
    while left := num_tokens - run.num_new:
        tree = decoder.plan(run.tokens, room=left + 20, wanted=left)
        num_candidates = decoder.num_candidates
        accepted, count_drafts = decoder.commit(run.tokens, answers(model, tree, run.tokens, num_candidates))
        drafted = count_drafts()
        for token in accepted.tokens:
            assert token == model(tuple(run.tokens[-4:]), len(run.tokens) - 1)[0]
            run.tokens.append(token)
        run.seconds += times.at(len(tree)) if times else 1.0
        run.rows.append(len(tree))
        run.num_plain += not num_candidates
        run.accepted.update(drafted.accepted)
        run.proposed.update(drafted.proposed)
        if fingerprints:
            run.fingerprints.append(decoder.fingerprint())
    return run
