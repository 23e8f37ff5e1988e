"""What methods have in common that have another one draft for them, with its default settings."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from lp.decoder import Decoder
from lp.methods.auto.method import Auto
from lp.methods.autoregressive import Autoregressive
from lp.methods.jacobi import Jacobi
from lp.methods.lookahead import Lookahead
from lp.methods.prompt_lookup import PromptLookup
from lp.request import DecodingContext, DecodingMethod, Request, RowBounds

INNER = {kind.method: kind for kind in (Auto, Autoregressive, Jacobi, PromptLookup, Lookahead)}


@dataclass
class AroundAnother(DecodingMethod):
    """A method around another one, which plans its trees."""

    inner: str = "auto"

    @property
    def drafting(self) -> DecodingMethod:
        """The method inside."""
        return INNER[self.inner]()

    @property
    def takes_forced(self) -> bool:
        return self.drafting.takes_forced

    @property
    def measures_host(self) -> bool:
        return self.drafting.measures_host

    def check_values(self) -> None:
        if self.inner not in INNER:
            raise ValueError(
                f"decode.inner={self.inner} is not for decode={self.method}: it is one of {', '.join(INNER)}"
            )

    def without_trees(self, plain: DecodingMethod) -> DecodingMethod:
        return dataclasses.replace(self, inner=plain.method)

    def row_bounds(self) -> RowBounds:
        return self.drafting.row_bounds()

    def make_decoder(self, request: Request, context: DecodingContext) -> Decoder:
        return self.drafting.make_decoder(request, context)

    def measure_host(self) -> tuple[float, float]:
        return self.drafting.measure_host()
