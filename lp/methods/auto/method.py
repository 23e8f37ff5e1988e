"""The method auto, which is the default."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from lp.decoder import Decoder
from lp.drafting.account import WindowChoice
from lp.drafting.history import DraftHistory
from lp.drafting.settings import DraftSettings
from lp.methods.auto.decoder import AutoDecoder
from lp.methods.auto.host_time import measure_host
from lp.methods.auto.with_draft_model import MixedDecoder
from lp.methods.draft_model.asking import Experience
from lp.methods.draft_model.method import drafted_text, history_of
from lp.model.second_model import DRAFT
from lp.request import DecodingContext, DecodingMethod, Request, RowBounds


@dataclass
class Auto(DraftSettings, DecodingMethod):
    """Drafts from all sources in one tree beside a lookahead window. Both are as large as pays off on this machine."""

    method: ClassVar[str] = "auto"

    @property
    def measures_host(self) -> bool:
        return True

    @property
    def label(self) -> str:
        return f"{self.method} ({self.rows} rows)" if self.rows else self.method

    def row_bounds(self) -> RowBounds:
        return RowBounds(max(1, self.rows), max(self.max_rows, self.rows), by_time=not self.rows)

    def make_decoder(self, request: Request, context: DecodingContext) -> Decoder:
        seed, temperature = request.sampling.seed, request.sampling.temperature
        assert seed is not None and temperature is not None
        given = self, [*request.prompt, *context.generated], seed, temperature
        if not self.model_drafts or DRAFT not in context.extensions:
            return AutoDecoder(*given, context.history, request.owner)
        text = drafted_text(request, context, not self.rows)
        history = history_of(text, context)
        experience = history.of_all(self.method, temperature, Experience)
        return MixedDecoder(AutoDecoder(*given, history, request.owner), text, experience, bool(self.rows))

    def windows_tried(self, history: DraftHistory, temperature: float) -> WindowChoice:
        return history.profile(self, temperature).windows

    def measure_host(self) -> tuple[float, float]:
        return measure_host(self)
