"""A request for the best of several sampled texts: its samples are sequences that share steps and the prompt's keys and
values, and nothing is told of them before the last has ended.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from lp.drafting.history import DraftHistory
from lp.generation import Committed, RequestState
from lp.methods import inner_of
from lp.model.checkpoint import Checkpoint
from lp.nested.settings import BestOf
from lp.request import BeamResult, Completion, Output, Request, ScoredText, mean_logprob
from lp.statistics import Statistics

# Of a text that the model which ranks finds impossible, as JSON has no infinity.
LOWEST_SCORE = -9999.0


class SampleGeneration(RequestState):
    """One sample. Whatever it tells is told of the whole request."""

    def __init__(self, request: Request, checkpoint: Checkpoint, history: DraftHistory, samples: Samples):
        """request: the sample's own."""
        super().__init__(request, checkpoint, history)
        self._samples = samples
        self.request_id = samples.request.id
        self.sequence.is_judged = samples.settings.ranked_by == "second"

    @property
    def generated(self) -> list[int]:
        """None: a request goes on elsewhere from its prompt, where the same samples are drawn."""
        return []

    def tell(self, step: Committed) -> Output:
        return self._samples.told(self.sequence.id, super().tell(step))

    def replay(self, tokens: Iterable[int]) -> Output:
        return replace(super().replay(tokens), request_id=self.request_id, stats=self._samples.stats())

    def cancelled(self) -> Output:
        return Output(self.request_id, [], "", None, "cancelled", self._samples.stats())


class Samples:
    """All samples of one request, in the order of their seeds, and what they have yielded so far."""

    def __init__(self, request: Request, checkpoint: Checkpoint, history: DraftHistory):
        assert isinstance(request.decode, BestOf)
        self.request, self.settings = request, request.decode
        own = [self._request_of(number) for number in range(self.settings.num_samples)]
        self._found = {one.id: Completion() for one in own}
        self._num_left = len(own)
        self.generations: list[RequestState] = [SampleGeneration(one, checkpoint, history, self) for one in own]
        for one in self.generations[1:]:
            one.leader = self.generations[0]

    def _request_of(self, number: int) -> Request:
        """That of a plain sampling, with the seed that choice `number` of `n` has."""
        request, sampling = self.request, self.request.sampling.another(number)
        sampling.logprobs = sampling.logprobs or 0
        return replace(request, id=f"{request.id}#{number}", decode=inner_of(self.settings), sampling=sampling)

    def told(self, name: str, progress: Output) -> Output:
        """What the request tells once a sample has told something."""
        self._found[name].extend(progress)
        self._num_left -= progress.finish_reason is not None
        if self._num_left or not progress.finish_reason:
            return Output(self.request.id, [], "", None, None, self.stats())
        if any(one.finish_reason == "error" for one in self._found.values()):
            return Output(self.request.id, [], "", None, "error", self.stats())
        return self._end()

    def _end(self) -> Output:
        ranked = sorted(self._found.values(), key=_score, reverse=True)
        best, shown = ranked[0], ranked[: self.settings.num_return_sequences]
        texts = [ScoredText(one.text, one.token_ids, _score(one)) for one in shown]
        stats = self.stats()
        logprobs = None if self.request.sampling.logprobs is None else best.logprobs
        return Output(
            self.request.id, best.token_ids, best.text, logprobs, best.finish_reason, stats,
            beams=BeamResult(texts, stats.steps),
        )  # fmt: skip

    def stats(self) -> Statistics:
        """The counts of all samples together. The prompt counts once; seconds are those of the longest."""
        all_stats = [one.stats for one in self._found.values()]
        first = all_stats[0]
        return replace(
            first,
            prompt_tokens=len(self.request.prompt),
            tokens=sum(one.tokens for one in all_stats),
            steps=sum(one.steps for one in all_stats),
            rows=sum(one.rows for one in all_stats),
            accepted_lengths=sum((one.accepted_lengths for one in all_stats), Counter()),
            proposed=sum((one.proposed for one in all_stats), Counter()),
            accepted=sum((one.accepted for one in all_stats), Counter()),
            decode_s=max(one.decode_s for one in all_stats),
        )


def _score(completion: Completion) -> float:
    return max(LOWEST_SCORE, mean_logprob(completion.logprobs))
