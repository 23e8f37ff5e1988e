"""Rejection sampling: its distribution is the model's, by a chi-square test that a biased version fails."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from torch import Tensor

from lp.sampling.couplings import DRAFT_STREAM, Draws, decide
from lp.sampling.noise import gumbel_at, stream_seed
from lp.sampling.sampler import Sampler
from lp.sampling.settings import Sampling
from lp.tree import Coupled, Proposal, TokenTree, chain
from tests.slow import slow_except

NUM_DRAWN = 6000
MODEL = torch.tensor([0.4, 0.25, 0.2, 0.1, 0.05, 0.0])
DRAFTS = {
    "another": torch.tensor([0.1, 0.1, 0.5, 0.1, 0.0, 0.2]),
    "the same": MODEL,
    "disjoint": torch.tensor([0.0, 0.0, 0.0, 0.0, 0.0, 1.0]),
}
# The values of chi square that are exceeded once in a thousand times, by degrees of freedom.
CRITICAL = {4: 18.47}

Decide = Callable[[Tensor, Proposal, int, Draws], int]


def drawn(draft: Tensor, num_children: int, seed: int) -> list[tuple[int, ...]]:
    """Children drawn without replacement at each position, as a draft draws them: the best with noise of its own."""
    noise = gumbel_at(stream_seed(seed, DRAFT_STREAM), range(NUM_DRAWN), torch.arange(len(draft)).repeat(NUM_DRAWN, 1))
    num_children = min(num_children, int((draft > 0).sum()))
    return [tuple(row) for row in (draft.log() + noise).topk(num_children, dim=1).indices.tolist()]


def chi_square(chosen: Sequence[int], model: Tensor) -> float:
    """Of the observed numbers against the exact probabilities. A token that cannot be must not have been chosen."""
    observed = np.bincount(chosen, minlength=len(model)).astype(float)
    expected = model.double().numpy() * len(chosen)
    assert not observed[expected == 0].any()
    return float(((observed - expected)[expected > 0] ** 2 / expected[expected > 0]).sum())


def chosen_with(decide: Decide, draft: Tensor, num_children: int, seed: int = 3) -> list[int]:
    draws = Draws(seed, np.arange(NUM_DRAWN))
    proposals = drawn(draft, num_children, seed)
    return [decide(MODEL, Proposal(tokens, draft), row, draws) for row, tokens in enumerate(proposals)]


@pytest.mark.parametrize("num_children", slow_except([1, 3], 3))
@pytest.mark.parametrize("name", DRAFTS)
def test_the_model_decides_how_tokens_are_distributed(name: str, num_children: int) -> None:
    assert chi_square(chosen_with(decide, DRAFTS[name], num_children), MODEL) < CRITICAL[4]


@pytest.mark.parametrize("num_children", [1, 3])
def test_a_biased_version_fails_the_same_test(num_children: int) -> None:
    """It draws from the whole distribution, instead of the rest, where a draft is rejected."""

    def biased(model: Tensor, proposal: Proposal, row: int, draws: Draws) -> int:
        for place, token in enumerate(proposal.tokens):
            if draws.uniform(row, place) * float(proposal.probabilities[token]) < float(model[token]):
                return token
        return int((model.double().log() + draws.gumbel(row, model.double())).argmax())

    assert chi_square(chosen_with(biased, DRAFTS["another"], num_children), MODEL) > 10 * CRITICAL[4]


def test_noise_of_the_draft_must_not_decide_on_it() -> None:
    """With the draft's own noise for the rest, the distribution is another one."""

    def same_noise(model: Tensor, proposal: Proposal, row: int, draws: Draws) -> int:
        draws = Draws(stream_seed(draws.seed, DRAFT_STREAM), draws.positions)
        return decide(model, proposal, row, draws)

    assert chi_square(chosen_with(same_noise, DRAFTS["another"], 1), MODEL) > 2 * CRITICAL[4]


def test_an_equal_draft_is_always_accepted() -> None:
    assert chosen_with(decide, MODEL, 1) == [tokens[0] for tokens in drawn(MODEL, 1, 3)]


def sampler(temperature: float, seed: int = 5) -> Sampler:
    settings = Sampling(temperature, 0, 1.0, 0.0, 1.0, 0.0, 0.0, 0, min_new_tokens=0, seed=seed)
    return Sampler(settings, 1, [], len(MODEL), "cpu")


def coupled(proposals: Sequence[Proposal], tokens: Sequence[int]) -> TokenTree:
    tree = chain(tokens)
    return TokenTree(tree.tokens, tree.parents, tree.depths, coupled=Coupled("rejection", proposals))


def test_rows_without_drafts_keep_their_targets() -> None:
    logits = torch.randn(3, len(MODEL), generator=torch.Generator().manual_seed(1))
    plain = sampler(0.8).answers(logits, chain([1, 2, 3]), [1])
    tree = coupled([Proposal()] * 3, [1, 2, 3])
    assert sampler(0.8).answers(logits, tree, [1]).targets.tolist() == plain.targets.tolist()


@pytest.mark.parametrize("token", [0, 1, 2])
def test_greedy_targets_stay_greedy(token: int) -> None:
    """A draft is accepted if and only if it is the best token."""
    proposal = Proposal((token,), torch.full((len(MODEL),), 1 / len(MODEL)))
    answers = sampler(0.0).answers(MODEL.log()[None].repeat(2, 1), coupled([proposal, Proposal()], [1, token]), [1], 3)
    assert answers.targets.tolist() == [0, 0]
    assert answers.candidates is not None and answers.candidates.tolist() == [[0, 1, 2]] * 2


def test_an_accepted_draft_is_the_first_candidate() -> None:
    sure = torch.zeros(len(MODEL))
    sure[4] = 1e-6  # so unlikely a draft is always accepted, as the model gives it more
    answers = sampler(1.0).answers(MODEL.log()[None], coupled([Proposal((4,), sure)], [1]), [1], 3)
    assert answers.targets.tolist() == [4]
    assert answers.candidates is not None
    assert answers.candidates[0, 0] == 4 and len({*answers.candidates[0].tolist()}) == 3


def test_a_part_of_a_tree_answers_as_the_whole() -> None:
    """A rank whose part lacks a row's children decides as the rank that has them."""
    logits = torch.randn(3, len(MODEL), generator=torch.Generator().manual_seed(2))
    even = torch.full((len(MODEL),), 1 / len(MODEL))
    for seed in range(20):
        tree = coupled([Proposal((2,), even), Proposal((3,), even), Proposal()], [1, 2, 3])
        whole = sampler(1.0, seed).answers(logits, tree, [1]).targets
        part = sampler(1.0, seed).answers(logits[:1], tree.take([0]), [1]).targets
        assert part[0] == whole[0]


def test_a_row_that_is_not_a_number_stays_one() -> None:
    logits = torch.full((1, len(MODEL)), torch.nan)
    tree = coupled([Proposal((2,), MODEL)], [1])
    assert sampler(1.0).answers(logits, tree, [1]).targets.tolist() == [-1]
