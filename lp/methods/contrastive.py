"""Contrastive decoding (Li et al., arXiv 2210.15097): what the scores are made of. Another method drafts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from lp.methods.inner import AroundAnother
from lp.model.second_model import SECOND
from lp.request import AnswerSpec, ModelTraits
from lp.sampling.contrast import Contrast

# For each setting, its lowest and its highest value.
RANGES = {"alpha": (0.0, 1.0), "weight": (0.0, 10.0), "amateur_temperature": (0.01, 100.0)}


@dataclass
class Contrastive(AroundAnother):
    """Contrastive decoding (Li et al., arXiv 2210.15097): tokens that the model finds likelier than an amateur does.

    The text is not the model's greedy one: exact means that it is that of plain contrastive decoding. It is not
    contrastive search (Su et al., arXiv 2202.06417). The amateur is the model of `second.path`, or else the model
    itself at a higher temperature.

    inner: the method that drafts, with its default settings: auto, autoregressive, jacobi, prompt_lookup or lookahead.
    alpha: tokens less likely than alpha times the best one's probability are left out. weight: of the amateur's
    log-probability, which is subtracted; 1 is the paper's score, 1/3 ranks tokens as arXiv 2309.09117 does with
    beta=0.5. amateur_temperature: what the amateur's logits are divided by.
    """

    method: ClassVar[str] = "contrastive"
    needs_engine: ClassVar[bool] = True
    inner: str = "auto"
    alpha: float = 0.1
    weight: float = 1.0
    amateur_temperature: float = 1.0

    def check_values(self) -> None:
        super().check_values()
        for name, (smallest, largest) in RANGES.items():
            if not smallest <= (value := getattr(self, name)) <= largest:
                raise ValueError(f"decode.{name}={value} is out of range: it must be from {smallest} to {largest}")

    def check_model(self, model: ModelTraits) -> None:
        if SECOND not in model.roles and self.amateur_temperature <= max(1.0, self.weight):
            raise ValueError(
                "decode=contrastive needs an amateur: a second model with the same vocabulary (second.path=, or "
                "second.layers= for the model's first layers), or the model itself at a higher temperature "
                f"(decode.amateur_temperature above 1 and decode.weight, not {self.amateur_temperature})"
            )

    def answer_spec(self, model: ModelTraits) -> AnswerSpec:
        of_second = SECOND in model.roles
        return AnswerSpec(contrast=Contrast(self.alpha, self.weight, self.amateur_temperature, of_second))
