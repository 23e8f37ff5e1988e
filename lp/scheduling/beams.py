"""A request whose text is found by beam search: nothing is told of it before its end.

Its sequence has the tokens that all hypotheses begin with, as these are what is kept in a KV cache.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from lp.decoding.beams.decoder import BeamDecoder
from lp.drafting.history import DraftHistory
from lp.generation import Committed, RequestState
from lp.methods import Beam
from lp.model.checkpoint import Checkpoint
from lp.request import BeamResult, Output, Request, ScoredText
from lp.text.stopping import FinishReason
from lp.tree import NOT_A_TOKEN, Answers, no_drafts


class BeamGeneration(RequestState):
    """A request with decode=beam. It goes on elsewhere from its prompt, where the same search yields the same text."""

    decoder: BeamDecoder

    def __init__(self, request: Request, checkpoint: Checkpoint, history: DraftHistory, generated: Iterable[int] = ()):
        """generated: none."""
        assert not [*generated]
        super().__init__(request, checkpoint, history)
        num_top = min(self.decoder.num_continuations, checkpoint.vocab_size)
        self.sequence.sampling = dataclasses.replace(request.sampling, logprobs=num_top)
        self._skips = request.stopping.skip_special_tokens
        self._tokenizer = checkpoint.tokenizer

    def _make_decoder(
        self, request: Request, text: list[int], checkpoint: Checkpoint, history: DraftHistory
    ) -> BeamDecoder:
        assert isinstance(request.decode, Beam) and request.stopping.max_new_tokens is not None
        ends = {*request.stopping.stop_token_ids, *(() if request.stopping.ignore_eos else checkpoint.eos)}
        return BeamDecoder(request.decode, ends, request.stopping.max_new_tokens)

    @property
    def generated(self) -> list[int]:
        return []

    @property
    def num_slots(self) -> int:
        return len(self.sequence.tokens) - 1 + max(self._most_rows, self.decoder.num_rows)

    def settle(self, answers: Answers) -> Committed:
        if self.recorder:
            self.recorder.note_tree(self.tree, self.decoder)
        accepted, _ = self.decoder.commit(self.sequence.tokens, answers)
        if NOT_A_TOKEN in accepted.tokens:
            return self._settled([], "error", answers)
        self.sequence.tokens += accepted.tokens
        self.num_fed = len(self.sequence.tokens) - 1
        if not self.decoder.search.is_done:
            return self._settled([], None, answers)
        return self._settled(*self.stop.take(self.decoder.search.result()[0].tokens, self.text), answers)

    def _settled(self, tokens: list[int], reason: FinishReason | None, answers: Answers) -> Committed:
        """What a step has yielded. No row of its tree counts as accepted, as the tokens are those of all steps."""
        recorded = self.recorder and self.recorder.settled([0], tokens)
        rows = [0] * len(tokens)
        return Committed(tokens, rows, reason, len(self.tree), answers, no_drafts, recorded)

    def tell(self, step: Committed) -> Output:
        progress = super().tell(step._replace(answers=Answers.none()))  # which has no log-probabilities to tell
        return dataclasses.replace(progress, beams=self._result()) if self.decoder.search.is_done else progress

    def _result(self) -> BeamResult:
        search = self.decoder.search
        texts = [ScoredText(self._text(tokens), list(tokens), score) for tokens, score in search.result()]
        return BeamResult(texts, search.num_calls)

    def _text(self, tokens: tuple[int, ...]) -> str:
        return str(self._tokenizer.decode(self._without_end(tokens), skip_special_tokens=self._skips))

    def _without_end(self, tokens: tuple[int, ...]) -> list[int]:
        """The tokens but for the one that ends the text."""
        return list(tokens[:-1] if tokens[-1] in self.stop.stop_tokens else tokens)
