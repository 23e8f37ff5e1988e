"""The best of several sampled texts: its samples are sequences that share steps and the prompt's keys and values, and
nothing of them is output before the last has ended. Another method drafts.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import ClassVar

from lp.methods.inner import AroundAnother
from lp.model.second_model import SECOND
from lp.request import (
    AnswerSpec,
    BeamResult,
    Completion,
    ModelTraits,
    Output,
    ParentRequest,
    Request,
    ScoredText,
    mean_logprob,
)
from lp.statistics import Statistics

# Of a text that the model which ranks finds impossible, as JSON has no infinity.
LOWEST_SCORE = -9999.0
# Whose log-probabilities rank texts.
RANKED_BY = ("model", "second")


@dataclass
class BestOf(AroundAnother):
    """Samples several texts and returns the one whose tokens have the highest mean log-probability, at the end.

    The text is not the model's greedy one: exact means that the texts are those of as many plain samplings, with the
    seeds that `n` has for its choices. It needs a temperature.

    inner: the method that drafts, with its default settings: auto, autoregressive, jacobi, prompt_lookup or lookahead.
    num_samples: texts that are sampled. num_return_sequences: those that are returned, best first. ranked_by: "model",
    or "second" for the log-probabilities of the model of `second.path`.
    """

    method: ClassVar[str] = "best_of"
    tells_steps: ClassVar[bool] = False
    needs_engine: ClassVar[bool] = True
    calls: ClassVar[str] = "steps of all samples"
    inner: str = "auto"
    num_samples: int = 4
    num_return_sequences: int = 1
    ranked_by: str = "model"

    def check_values(self) -> None:
        super().check_values()
        if self.num_return_sequences > self.num_samples:
            raise ValueError(
                f"decode.num_return_sequences={self.num_return_sequences} is more than "
                f"decode.num_samples={self.num_samples}"
            )
        if self.ranked_by not in RANKED_BY:
            raise ValueError(f"decode.ranked_by={self.ranked_by} must be one of {', '.join(RANKED_BY)}")

    def check_model(self, model: ModelTraits) -> None:
        if self.ranked_by == "second" and SECOND not in model.roles:
            raise ValueError("decode.ranked_by=second needs a second model with the same vocabulary (second.path=)")

    def check_request(self, request: Request) -> None:
        sampling = request.sampling
        if not sampling.temperature:
            raise ValueError(
                "temperature=0 is not for decode=best_of, as all samples would be the same; set a temperature above 0"
            )
        if sampling.logprobs is not None and self.ranked_by == "second":
            raise ValueError("logprobs is not for decode.ranked_by=second, whose are not the model's; leave it out")
        if sampling.prompt_logprobs is not None:
            raise ValueError("prompt_logprobs is not for decode=best_of, which tells of its texts alone; leave it out")
        if request.trace:
            raise ValueError(
                f"a trace is not for decode=best_of, whose steps are those of many texts; trace decode={self.inner}"
            )

    def answer_spec(self, model: ModelTraits) -> AnswerSpec:
        return AnswerSpec(is_judged=self.ranked_by == "second")

    @property
    def num_sequences(self) -> int:
        return self.num_samples

    def fan_out(self, request: Request) -> ParentRequest:
        return Samples(request, self)


class Samples(ParentRequest):
    """All samples of one request, in the order of their seeds, and what they have yielded so far."""

    def __init__(self, request: Request, settings: BestOf):
        self.request, self.settings = request, settings
        self.requests = [self._request_of(number) for number in range(settings.num_samples)]
        self._found = {one.id: Completion() for one in self.requests}
        self._num_left = len(self.requests)

    def _request_of(self, number: int) -> Request:
        """That of a plain sampling, with the seed that choice `number` of `n` has."""
        request, sampling = self.request, self.request.sampling.another(number)
        sampling.logprobs = sampling.logprobs or 0
        return replace(request, id=f"{request.id}#{number}", sampling=sampling)

    def output(self, own: Output) -> Output:
        self._found[own.request_id].extend(own)
        self._num_left -= own.finish_reason is not None
        if self._num_left or not own.finish_reason:
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

    def aborted(self) -> Output:
        return Output(self.request.id, [], "", None, "cancelled", self.stats())

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
            drafted_ahead=sum((one.drafted_ahead for one in all_stats), Counter()),
            decode_s=max(one.decode_s for one in all_stats),
        )


def _score(completion: Completion) -> float:
    return max(LOWEST_SCORE, mean_logprob(completion.logprobs))
