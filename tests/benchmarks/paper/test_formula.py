"""The paper's formula agrees with its definition, and the fit finds known parameters."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from benchmarks.paper.formula import expected_tokens, fit, step_compression

WINDOWS, LENGTHS = np.array(list(itertools.product((1, 3, 7, 15, 60), (2, 4, 7)))).T


def by_enumeration(alpha: float, speculations: int, length: int) -> float:
    """The expected length of the longest right beginning plus one, over all ways in which tokens can be right."""
    total = 0.0
    for rights in itertools.product((True, False), repeat=speculations * length):
        drafts = [rights[start : start + length] for start in range(0, len(rights), length)]
        longest = max(sum(itertools.accumulate(draft, lambda so_far, right: so_far and right)) for draft in drafts)
        total += (longest + 1) * alpha ** sum(rights) * (1 - alpha) ** (len(rights) - sum(rights))
    return total


@pytest.mark.parametrize("alpha", [0.1, 0.425, 0.9])
@pytest.mark.parametrize(("speculations", "length"), [(1, 1), (1, 4), (2, 3), (3, 2), (4, 3)])
def test_expected_tokens_are_those_of_all_outcomes(alpha: float, speculations: int, length: int) -> None:
    assert expected_tokens(alpha, speculations, length) == pytest.approx(by_enumeration(alpha, speculations, length))


def test_one_step_in_f_yields_the_expected_tokens() -> None:
    good = expected_tokens(0.4, 7, 4)
    assert step_compression(0.4, 3.0, 7, 4) == pytest.approx((1 + 1 + good) / 3)
    assert step_compression(0.4, 1.0, 7, 4) == pytest.approx(good)


@pytest.mark.parametrize("alpha", [0.05, 0.425, 0.8, 0.97])
@pytest.mark.parametrize("f", [1.0, 1.5, 3.1, 8.0])
def test_fit_recovers_what_the_points_were_made_with(alpha: float, f: float) -> None:
    found = fit(WINDOWS, LENGTHS, step_compression(alpha, f, WINDOWS, LENGTHS))
    assert found.alpha == pytest.approx(alpha, abs=1e-4) and found.f == pytest.approx(f, abs=1e-3)
    assert found.residual < 1e-4


def test_fit_of_noisy_points_says_how_far_off_it_is() -> None:
    noise = 0.05 * np.random.default_rng(0).standard_normal(len(WINDOWS))
    found = fit(WINDOWS, LENGTHS, step_compression(0.4, 3.0, WINDOWS, LENGTHS) + noise)
    assert found.alpha == pytest.approx(0.4, abs=0.05) and found.f == pytest.approx(3.0, abs=0.4)
    assert 0.02 < found.residual < 0.06 and found.residual < found.largest < 0.15


def test_two_points_are_refused() -> None:
    with pytest.raises(ValueError, match="2 measurements do not determine"):
        fit([1, 3], [4, 4], [1.2, 1.4])
