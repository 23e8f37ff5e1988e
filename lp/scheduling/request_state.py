"""A request that is being served: its tokens, its text, its decoder and its stop conditions.

Knows nothing of runners, other requests or ranks.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from lp.decoder import ProposedDrafts
from lp.drafting.history import DraftHistory
from lp.grammar.constrained import ConstrainedDecoder
from lp.model.checkpoint import Checkpoint
from lp.request import (
    BeamResult,
    DecodingContext,
    ModelTraits,
    Output,
    ParentRequest,
    Pooling,
    Request,
    ScoredText,
    Sequence,
    TokenLogprob,
)
from lp.scheduling.prompt_scores import PromptScores, token_logprobs
from lp.statistics import Statistics
from lp.text.detokenizer import Detokenizer
from lp.text.stopping import FinishReason, StopConditions, TextStream
from lp.trace import RecordedStep, StepTrace, TraceRecorder
from lp.tree import NO_ROWS, NOT_A_TOKEN, Accepted, Answers, CountDrafts, TokenTree, chain, no_drafts


class Committed(NamedTuple):
    """What a step has added to a request, before its text is made.

    tokens: up to the one that ends the sequence. rows: for each of them, the row whose target it is. reason: why the
    sequence ends; None if it does not. num_rows: of the step's tree. recorded: for its trace, if one is asked for.
    """

    state: RequestState
    tokens: list[int]
    rows: list[int]
    reason: FinishReason | None
    num_rows: int
    answers: Answers
    count_drafts: CountDrafts
    recorded: RecordedStep | None = None


class RequestState:
    """One request that is being served."""

    def __init__(
        self,
        request: Request,
        checkpoint: Checkpoint,
        history: DraftHistory,
        generated: Iterable[int] = (),
        parent: ParentRequest | None = None,
    ):
        """generated: tokens generated earlier, from which drafts may be made. Pass the same tokens to `replay` next.

        parent: the request that this is a part of; None if it is whole.
        """
        sampling, method, generated = request.sampling, request.decode, [*generated]
        assert request.stopping.max_new_tokens is not None
        extensions = checkpoint.extensions
        context = DecodingContext(history, generated, checkpoint.vocab_size, checkpoint.eos, extensions)
        self.decoder = method.make_decoder(request, context)
        assert not generated or not self.decoder.ends_at_once
        self._most_rows = method.most_rows(request.grammar is not None)
        grammar = request.grammar and checkpoint.grammars.begin(request.grammar, len(request.prompt))
        if grammar and method.takes_forced:
            self.decoder = ConstrainedDecoder(self.decoder, grammar)
        self.prompt, prompt = request.prompt, list(request.prompt)
        if self.decoder.num_top is not None:
            sampling = replace(sampling, logprobs=min(self.decoder.num_top, checkpoint.vocab_size))
        spec = method.answer_spec(ModelTraits.of(checkpoint, extensions))
        self.parent = parent
        self.request_id = parent.request.id if parent else request.id  # the name under which outputs are reported
        self.is_aborted = False
        self.leader: RequestState | None = None  # computes the same prompt for this one
        num_hidden = checkpoint.model.hidden_size if request.pooling else 0
        self.sequence = Sequence(
            request.id, prompt, len(prompt), sampling, request.grammar, request.trace, *spec, num_hidden=num_hidden
        )
        self.recorder = TraceRecorder() if request.trace else None
        # The log-probabilities of the prompt's tokens, until an output has them; a resumed request has reported them.
        self.scores: PromptScores | None = None
        self._pooling, self._embedding = request.pooling, list[float]()
        has_scores = sampling.prompt_logprobs is not None or request.pooling is Pooling.mean
        if has_scores and not generated:
            self.scores = PromptScores(self.prompt, checkpoint.vocab_size, num_hidden)
            del prompt[1:]  # the others are added as they are scored
        stopping = request.stopping
        detokenizer = Detokenizer(checkpoint.tokenizer, request.prompt, stopping.skip_special_tokens)
        self.text = TextStream(detokenizer, stopping.stop, stopping.include_stop)
        self._tokenizer, self._skips = checkpoint.tokenizer, stopping.skip_special_tokens
        self.stop = StopConditions(stopping, checkpoint.eos, request.stopping.max_new_tokens, grammar)
        self.stats = Statistics(prompt_tokens=len(request.prompt), lossy=method.lossy)
        self.tree = chain([])  # the tree of the step under way
        self.owner, self.priority = request.owner, request.priority
        # How many of the sequence's first tokens have keys and values in a cache.
        self.num_computed = 0
        self.least_rows = method.row_bounds().least

    @property
    def generated(self) -> list[int]:
        """The tokens from which another engine can go on; none where it must begin anew, from the prompt."""
        return [] if self.parent or self.decoder.ends_at_once else self.sequence.tokens[self.sequence.prompt_length :]

    @property
    def num_uncomputed(self) -> int:
        """Tokens that must be computed before the next step's tree, or with it."""
        return len(self.sequence.tokens) - 1 - self.num_computed + self._num_unscored

    @property
    def most_scored(self) -> int:
        """The most tokens of the prompt that a step scores; 0 if they are not to be scored, or have been."""
        return self.scores.most_rows if self.scores and self._num_unscored else 0

    @property
    def _num_unscored(self) -> int:
        return self.scores.num_uncomputed if self.scores else 0

    @property
    def num_slots(self) -> int:
        """Tokens of keys and values that the next step needs, the rows of its tree included."""
        return len(self.sequence.tokens) - 1 + self._num_unscored + max(self._most_rows, self.decoder.most_rows)

    @property
    def likely_rows(self) -> int:
        """Rows that the next step's tree is likely to have: those of the last one."""
        return max(self.least_rows, len(self.tree))

    def reuse_prefix(self, num_tokens: int) -> None:
        """Notes that the first tokens have been computed for another sequence."""
        self.num_computed = num_tokens
        self.stats.cached_tokens = min(num_tokens, self.stats.prompt_tokens)

    def reuse_cached(self, num_tokens: int) -> None:
        """Notes that the first tokens are in a cache already, as the sequence has run before."""
        if not self._num_unscored:
            self.num_computed = num_tokens

    def forget_computed(self) -> None:
        """Notes that nothing of the sequence is in a cache any more. A prompt that is being scored is scored anew."""
        self.num_computed = 0
        if self.scores and self._num_unscored:
            self.scores.forget()
            del self.sequence.tokens[1:]

    def prefill(self, num_computed: int) -> TokenTree:
        """Notes that a step computes the first tokens, up to this number, and decodes nothing.

        Returns the step's tree: no rows, or those that score these tokens.
        """
        self.stats.start_step()
        if self.scores and self._num_unscored:
            self.tree = self.scores.chunk(num_computed)
        else:
            self.num_computed, self.tree = num_computed, NO_ROWS
        return self.tree

    def commit_prefill(self, answers: Answers) -> Committed | None:
        """Adds the prompt's tokens that a step has scored. Returns the sequence's end if a score is not a number."""
        if not len(answers.targets):
            return None
        assert self.scores
        try:
            tokens = self.scores.commit(answers)
        except FloatingPointError:
            return Committed(self, [], [], "error", 0, Answers.none(), no_drafts)
        self.sequence.tokens += tokens
        self.num_computed = len(self.sequence.tokens) - 1
        return None

    def plan(self, room: int) -> TokenTree:
        """Plans the next step's tree. room: positions that the model has after the sequence's last token."""
        if self.stats.started_at is None:
            self.stats.start_step()
        self.tree = self.decoder.plan(self.sequence.tokens, room, self.stop.num_left)
        return self.tree

    def propose(self, room: int, load: int) -> ProposedDrafts:
        """Proposes drafts for the next step; `build_tree` follows. room: see `plan`. load: sequences of the step."""
        self.stats.start_step()
        return self.decoder.propose(self.sequence.tokens, room, self.stop.num_left, load)

    def build_tree(self, num_drafts: int) -> TokenTree:
        """Builds the next step's tree with the first `num_drafts` of the proposed drafts."""
        self.tree = self.decoder.build_tree(num_drafts)
        return self.tree

    def commit(self, answers: Answers) -> Committed:
        """Verifies the step's tree and adds the accepted tokens, up to the one that ends the sequence.

        That is all that the next step's plan needs; `output` does the rest.
        """
        if self.recorder:
            self.recorder.note_tree(self.tree, self.decoder)
        accepted, count_drafts = self.decoder.commit(self.sequence.tokens, answers)
        if self._pooling:
            return self._commit_embedding(answers, NOT_A_TOKEN in accepted.tokens)
        if self.decoder.ends_at_once:
            return self._commit_at_once(accepted)
        tokens, reason = self.stop.take(accepted.tokens, self.text)
        self.sequence.tokens += tokens
        self.num_computed = len(self.sequence.tokens) - 1
        recorded = self.recorder and self.recorder.committed(accepted.rows, tokens)
        rows = accepted.rows[: len(tokens)]
        return Committed(self, tokens, rows, reason, len(self.tree), answers, count_drafts, recorded)

    def _commit_embedding(self, answers: Answers, has_failed: bool) -> Committed:
        """Ends a request that asks for an embedding with the step whose root is the prompt's last token.

        has_failed: whether the model has answered with something that is not a number.
        """
        assert answers.hidden is not None
        hidden = answers.hidden[0].astype(np.float64)
        if self._pooling is Pooling.mean:
            assert self.scores is not None
            hidden = (self.scores.hidden + hidden) / len(self.prompt)
        self._embedding = [] if has_failed else hidden.tolist()
        self.num_computed = len(self.sequence.tokens) - 1
        return Committed(self, [], [], "error" if has_failed else "stop", len(self.tree), answers, no_drafts)

    def _commit_at_once(self, accepted: Accepted) -> Committed:
        """Commits a step of a decoder that yields nothing before its end, whose sequence has the tokens with which all
        its texts begin. No row counts as accepted, as the tokens are those of all steps.
        """
        tokens, reason = list[int](), None
        if NOT_A_TOKEN in accepted.tokens:
            reason = "error"
        else:
            self.sequence.tokens += accepted.tokens
            self.num_computed = len(self.sequence.tokens) - 1
            if found := self.decoder.result():
                tokens, reason = self.stop.take(found.texts[0].tokens, self.text)
        recorded = self.recorder and self.recorder.committed([0], tokens)
        none = Answers.none()  # the output has no log-probabilities
        return Committed(self, tokens, [0] * len(tokens), reason, len(self.tree), none, no_drafts, recorded)

    def output(self, step: Committed) -> Output:
        """Makes a step's output: text, log-probabilities and statistics. Steps come in their order."""
        self.stats.end_step(step.num_rows, len(step.tokens), step.count_drafts())
        trace = step.recorded and step.recorded.trace(self.stats.steps - 1)
        return self._output(step.tokens, _logprobs(step.answers, step.tokens, step.rows), step.reason, trace)

    def replay(self, tokens: Iterable[int]) -> Output:
        """Adds tokens that were generated earlier, perhaps on other ranks."""
        taken, reason = self.stop.take(tokens, self.text)
        self.sequence.tokens += taken
        self.stats.tokens = len(taken)
        return self._output(taken, None, reason)

    def _output(
        self,
        tokens: list[int],
        logprobs: list[TokenLogprob] | None,
        reason: FinishReason | None,
        trace: StepTrace | None = None,
    ) -> Output:
        text = self.text.take(final=reason is not None)
        scored = None
        if self.scores and not self._num_unscored and (tokens or reason):
            scored, self.scores = None if self._pooling else self.scores.found, None
        output = Output(
            self.sequence.id, tokens, text, logprobs, reason, self.stats,
            prompt_logprobs=scored, beams=self._rank(), trace=trace, embedding=self._embedding or None,
        )  # fmt: skip
        return self.parent.output(output) if self.parent else output

    def _rank(self) -> BeamResult | None:
        """The texts of a decoder that has ranked them at its end."""
        if (found := self.decoder.result()) is None:
            return None
        ends = self.stop.stop_tokens
        texts = [(own[:-1] if own[-1] in ends else own, own, score) for own, score in found.texts]
        return BeamResult(
            [
                ScoredText(str(self._tokenizer.decode(list(shown), skip_special_tokens=self._skips)), list(own), score)
                for shown, own, score in texts
            ],
            found.num_calls,
        )

    def aborted(self) -> Output:
        if self.parent:
            return self.parent.aborted()
        return Output(self.sequence.id, [], self.text.take(final=True), None, "cancelled", self.stats)

    def fingerprint(self) -> int:
        """A checksum of the state on which all later tokens depend. It must be equal on all ranks."""
        state = self.sequence.id, self.sequence.tokens, self.sequence.sampling, self.decoder.fingerprint()
        return zlib.crc32(repr(state).encode())


def _logprobs(answers: Answers, tokens: list[int], rows: list[int]) -> list[TokenLogprob] | None:
    return None if answers.logprobs is None else token_logprobs(answers, tokens, rows)
