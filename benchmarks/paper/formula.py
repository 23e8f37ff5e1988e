"""The paper's formula for tokens per step (arXiv 2402.02057, section 4), and its fit to measurements.

b speculations of gamma tokens each, of which every token is right with probability alpha, yield

    E = (gamma + 1) - sum over i = 1 ... gamma of (1 - alpha^i)^b

tokens in a step of batched speculation. Lookahead decoding has such a step once in f steps; the others yield one token:

    S = (f - 1 + E) / f

with b = W = G and gamma = N - 1. alpha and f depend on the model and the text.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import curve_fit


@dataclass(frozen=True)
class FormulaFit:
    """The formula's parameters, and how far it is from the measured tokens per step.

    residual: root mean square of the differences. largest: the largest difference.
    """

    alpha: float
    f: float
    residual: float
    largest: float


def expected_tokens(alpha: float, speculations: ArrayLike, length: ArrayLike) -> NDArray[np.float64]:
    """E, element by element, for b = `speculations` and gamma = `length`."""
    b, gamma = np.broadcast_arrays(np.asarray(speculations, dtype=float), np.asarray(length, dtype=int))
    i = np.arange(1, gamma.max(initial=1) + 1)
    wrong = (1 - alpha**i) ** b[..., None]
    return gamma + 1 - np.where(i <= gamma[..., None], wrong, 0).sum(axis=-1)


def step_compression(alpha: float, f: float, speculations: ArrayLike, length: ArrayLike) -> NDArray[np.float64]:
    """S, element by element: tokens per step."""
    return (f - 1 + expected_tokens(alpha, speculations, length)) / f


def fit(speculations: ArrayLike, length: ArrayLike, measured: ArrayLike) -> FormulaFit:
    """Finds the alpha in (0, 1) and the f >= 1 whose S is nearest to the measured tokens per step, by least squares.

    Raises ValueError for fewer than three measurements, because two parameters would always fit them.
    """
    found = np.asarray(measured, dtype=float)
    if found.size < 3:
        raise ValueError(f"{found.size} measurements do not determine alpha and f: give at least 3 with W = G")

    def law(points: NDArray[np.float64], alpha: float, f: float) -> NDArray[np.float64]:
        return step_compression(alpha, f, points[0], points[1])

    points = np.stack([np.asarray(speculations, dtype=float), np.asarray(length, dtype=float)])
    parameters, _ = curve_fit(law, points, found, p0=(0.5, 2.0), bounds=([1e-6, 1.0], [1 - 1e-6, 1e6]))
    alpha, f = (float(value) for value in parameters)
    differences = found - law(points, alpha, f)
    return FormulaFit(alpha, f, float(np.sqrt(np.mean(differences**2))), float(np.abs(differences).max()))
