"""A request that is being served: its tokens, its text, its decoder and its stop conditions.

Knows nothing of runners, other requests or ranks.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from typing import NamedTuple

from lp.decoding.base import Decoder, Offer
from lp.decoding.by_model.settings import REJECTION
from lp.decoding.constrained import ConstrainedDecoder
from lp.decoding.make import make_decoder
from lp.draft_model.rounds import DraftedText
from lp.drafting.history import DraftHistory
from lp.methods import Auto, Autoregressive, DraftModel, Medusa, inner_of, least_rows, lossy_name, most_rows
from lp.model.beside.settings import DRAFT, SECOND
from lp.model.checkpoint import Checkpoint
from lp.nested.settings import Contrastive, contrast_of
from lp.request import Output, Request, Sequence, TokenLogprob
from lp.scheduling.prompt_scores import PromptScores, token_logprobs
from lp.statistics import Statistics
from lp.text.detokenizer import Detokenizer
from lp.text.stopping import FinishReason, StopConditions, TextStream
from lp.trace.recorder import RecordedStep, TraceRecorder
from lp.trace.step import StepTrace
from lp.tree import NO_ROWS, Ahead, Answers, CountDrafts, TokenTree, chain, no_drafts


class Committed(NamedTuple):
    """What a step has added to a sequence.

    tokens: up to the one that ends the sequence. rows: for each of them, the row whose target it is. reason: why the
    sequence ends; None if it does not. num_rows: of the step's tree. answers: to all of them. recorded: for its trace;
    None if the request does not ask for one.
    """

    tokens: list[int]
    rows: list[int]
    reason: FinishReason | None
    num_rows: int
    answers: Answers
    count_drafts: CountDrafts
    recorded: RecordedStep | None = None


class RequestState:
    """One request that is being served."""

    def __init__(self, request: Request, checkpoint: Checkpoint, history: DraftHistory, generated: Iterable[int] = ()):
        """generated: tokens generated earlier, from which drafts may be made. Pass the same tokens to `replay` next."""
        sampling = request.sampling
        assert request.stopping.max_new_tokens is not None
        text = [*request.prompt, *generated]
        self.decoder = self._make_decoder(request, text, checkpoint, history)
        self._most_rows = most_rows(request.decode, request.grammar is not None)
        grammar = request.grammar and checkpoint.grammars.begin(request.grammar, len(request.prompt))
        if grammar and not isinstance(inner_of(request.decode), Autoregressive):
            self.decoder = ConstrainedDecoder(self.decoder, grammar)
        self.prompt, prompt = request.prompt, list(request.prompt)
        ahead, contrast = _ahead(request, checkpoint), None
        if isinstance(request.decode, Contrastive):
            contrast = contrast_of(request.decode, SECOND in checkpoint.beside)
        self.request_id = request.id  # of whom progress is told
        self.leader: RequestState | None = None  # computes the same prompt for this one
        self.sequence = Sequence(
            request.id, prompt, len(prompt), sampling, request.grammar, request.trace, ahead, contrast
        )
        self.recorder = TraceRecorder() if request.trace else None
        # What the prompt's tokens are worth, until that has been told. Whoever has generated tokens has told it.
        self.scores: PromptScores | None = None
        if sampling.prompt_logprobs is not None and len(text) == len(prompt):
            self.scores = PromptScores(self.prompt, checkpoint.vocab_size)
            del prompt[1:]  # the others are added as they are scored
        stopping = request.stopping
        detokenizer = Detokenizer(checkpoint.tokenizer, request.prompt, stopping.skip_special_tokens)
        self.text = TextStream(detokenizer, stopping.stop)
        self.stop = StopConditions(stopping, checkpoint.eos, request.stopping.max_new_tokens, grammar)
        self.stats = Statistics(prompt_tokens=len(request.prompt), lossy=lossy_name(request.decode))
        self.tree = chain([])  # the tree of the step under way
        self.owner, self.priority = request.owner, request.priority
        # How many of the sequence's first tokens have been computed; their keys and values are in a cache.
        self.num_fed = 0
        self.least_rows = least_rows(request.decode)

    def _make_decoder(
        self, request: Request, text: list[int], checkpoint: Checkpoint, history: DraftHistory
    ) -> Decoder:
        sampling = request.sampling
        assert sampling.seed is not None and sampling.temperature is not None
        settings, second = inner_of(request.decode), None
        mixes = isinstance(settings, Auto) and settings.model_drafts and DRAFT in checkpoint.beside
        if mixes or isinstance(settings, DraftModel):
            draft, prompt_length, cost = checkpoint.beside[DRAFT], len(request.prompt), checkpoint.relative_cost(DRAFT)
            is_drawn = isinstance(settings, DraftModel) and settings.verify == REJECTION
            second = DraftedText(draft, sampling, prompt_length, checkpoint.vocab_size, cost, is_drawn)
        return make_decoder(settings, text, sampling.seed, sampling.temperature, history, request.owner, second)

    @property
    def generated(self) -> list[int]:
        """The tokens from which another engine can go on."""
        return self.sequence.tokens[self.sequence.prompt_length :]

    @property
    def num_missing(self) -> int:
        """Tokens that must be computed before the next step's tree, or with it."""
        return len(self.sequence.tokens) - 1 - self.num_fed + self._num_unscored

    @property
    def most_scored(self) -> int:
        """The most tokens of the prompt that a step scores; 0 if they are not to be scored, or have been."""
        return self.scores.most_rows if self.scores and self._num_unscored else 0

    @property
    def _num_unscored(self) -> int:
        return self.scores.num_missing if self.scores else 0

    @property
    def num_slots(self) -> int:
        """Tokens of keys and values that the next step needs, the rows of its tree included."""
        return len(self.sequence.tokens) - 1 + self._num_unscored + self._most_rows

    @property
    def likely_rows(self) -> int:
        """Rows that the next step's tree is likely to have: those of the last one."""
        return max(self.least_rows, len(self.tree))

    def reuse(self, num_tokens: int) -> None:
        """Notes that the first tokens need not be computed, as that was done for another sequence."""
        self.num_fed = num_tokens
        self.stats.cached_tokens = min(num_tokens, self.stats.prompt_tokens)

    def hold(self, num_tokens: int) -> None:
        """Notes that the first tokens are in a cache already, as the sequence has run before."""
        if not self._num_unscored:
            self.num_fed = num_tokens

    def forget(self) -> None:
        """Notes that nothing of the sequence is in a cache any more. A prompt that is being scored is scored anew."""
        self.num_fed = 0
        if self.scores and self._num_unscored:
            self.scores.forget()
            del self.sequence.tokens[1:]

    def feed(self, num_fed: int) -> TokenTree:
        """Notes that a step is going to compute the first tokens, up to so many of them, and decodes nothing. Returns
        its tree: no rows, or those that score these tokens.
        """
        self.stats.start_step()
        if self.scores and self._num_unscored:
            self.tree = self.scores.chunk(num_fed)
        else:
            self.num_fed, self.tree = num_fed, NO_ROWS
        return self.tree

    def score(self, answers: Answers) -> Committed | None:
        """Takes what a step has scored. Returns the sequence's end if that is not a number."""
        assert self.scores
        try:
            tokens = self.scores.take(answers)
        except FloatingPointError:
            return Committed([], [], "error", 0, Answers.none(), no_drafts)
        self.sequence.tokens += tokens
        self.num_fed = len(self.sequence.tokens) - 1
        return None

    def plan(self, room: int) -> TokenTree:
        """Plans the next step's tree. room: positions that the model has after the sequence's last token."""
        if self.stats.started_at is None:
            self.stats.start_step()
        self.tree = self.decoder.plan(self.sequence.tokens, room, self.stop.num_left)
        return self.tree

    def offer(self, room: int, load: int) -> Offer:
        """Begins to plan the next step's tree; `take` ends it. room: see `plan`. load: sequences of the step."""
        self.stats.start_step()
        return self.decoder.offer(self.sequence.tokens, room, self.stop.num_left, load)

    def take(self, num_drafts: int) -> TokenTree:
        """The offered tree with so many drafts."""
        self.tree = self.decoder.take(num_drafts)
        return self.tree

    def settle(self, answers: Answers) -> Committed:
        """Verifies the step's tree and adds the accepted tokens, up to the one that ends the sequence.

        That is all that the next step's plan needs; the rest is up to `tell`.
        """
        step = self._verified(answers)
        self.sequence.tokens += step.tokens
        self.num_fed = len(self.sequence.tokens) - 1
        return step

    def _verified(self, answers: Answers) -> Committed:
        if self.recorder:
            self.recorder.note_tree(self.tree, self.decoder)
        accepted, count_drafts = self.decoder.commit(self.sequence.tokens, answers)
        tokens, reason = self.stop.take(accepted.tokens, self.text)
        recorded = self.recorder and self.recorder.settled(accepted.rows, tokens)
        return Committed(tokens, accepted.rows[: len(tokens)], reason, len(self.tree), answers, count_drafts, recorded)

    def tell(self, step: Committed) -> Output:
        """What a step has yielded: text, log-probabilities and statistics. Steps must be told in their order."""
        self.stats.end_step(step.num_rows, len(step.tokens), step.count_drafts())
        trace = step.recorded and step.recorded.trace(self.stats.steps - 1)
        return self._progress(step.tokens, _logprobs(step.answers, step.tokens, step.rows), step.reason, trace)

    def replay(self, tokens: Iterable[int]) -> Output:
        """Adds tokens that were generated earlier, perhaps on other ranks."""
        taken, reason = self.stop.take(tokens, self.text)
        self.sequence.tokens += taken
        self.stats.tokens = len(taken)
        return self._progress(taken, None, reason)

    def _progress(
        self,
        tokens: list[int],
        logprobs: list[TokenLogprob] | None,
        reason: FinishReason | None,
        trace: StepTrace | None = None,
    ) -> Output:
        text = self.text.take(final=reason is not None)
        scored = None
        if self.scores and not self._num_unscored and (tokens or reason):
            scored, self.scores = self.scores.found, None
        return Output(self.sequence.id, tokens, text, logprobs, reason, self.stats, prompt_logprobs=scored, trace=trace)

    def cancelled(self) -> Output:
        return Output(self.sequence.id, [], self.text.take(final=True), None, "cancelled", self.stats)

    def fingerprint(self) -> int:
        """A checksum of the state on which all later tokens depend. It must be equal on all ranks."""
        state = self.sequence.id, self.sequence.tokens, self.sequence.sampling, self.decoder.fingerprint()
        return zlib.crc32(repr(state).encode())


def _ahead(request: Request, checkpoint: Checkpoint) -> Ahead | None:
    """What the steps of a request ask of the checkpoint's heads; None for nothing."""
    if not isinstance(request.decode, Medusa):
        return None
    assert checkpoint.heads is not None, "see RequestBuilder"
    _, info = checkpoint.heads
    return Ahead(info.num_heads, min(request.decode.candidates, info.vocab_size))


def _logprobs(answers: Answers, tokens: list[int], rows: list[int]) -> list[TokenLogprob] | None:
    return None if answers.logprobs is None else token_logprobs(answers, tokens, rows)
