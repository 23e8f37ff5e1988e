"""What contrastive decoding asks of the scores of a sequence's rows. Knows nothing of how they are computed."""

from __future__ import annotations

from typing import NamedTuple


class Contrast(NamedTuple):
    """How scores are made of two distributions. alpha, weight, temperature (of the amateur): see
    lp.nested.settings.Contrastive. of_second: whether a second model is the amateur, rather than the model itself.
    """

    alpha: float
    weight: float
    temperature: float
    of_second: bool
