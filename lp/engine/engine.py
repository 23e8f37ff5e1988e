"""The engine takes requests and returns their outputs. It knows nothing of HTTP, configuration files or ranks.

Its loop is `step`: schedule, plan, start, finish, commit, output. Given the same requests in the same order, engines in
several processes go through the same states.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Iterable, Iterator
from collections.abc import Sequence as Items
from dataclasses import replace
from enum import StrEnum
from typing import Any, TypeVar

from lp.drafting.answer_index import AnswerIndex
from lp.drafting.corpus import Corpus
from lp.drafting.history import DraftHistory, Learnt
from lp.engine.builder import EngineSettings, KeepTimes, SingleProcess, Topology, make_parts
from lp.engine.input import NO_HIDDEN, Prompt, RequestBuilder
from lp.grammar.settings import Grammar, GrammarBackend
from lp.model.checkpoint import Checkpoint, Invariance, ModelSettings
from lp.model.compilation import CompileMode
from lp.model.quantization.quantize import Weights
from lp.model.second_model import SecondModel
from lp.request import Completion, DecodeLimits, DecodingMethod, Output, Pooling, Request, Sequence
from lp.runner.runner import Runner
from lp.runner.single_device import SingleDevice
from lp.runner.step_times.learn import StepTimesLearner, Trial
from lp.runner.step_times.measure import StepTimesSource, Trials
from lp.sampling.settings import Sampling
from lp.scheduling.batch import Batch
from lp.scheduling.begin import make_states
from lp.scheduling.kv_budget import KVBudget, RequestTooLarge
from lp.scheduling.planner import Planner
from lp.scheduling.prefix_cache import FinishedSequence
from lp.scheduling.request_state import Committed
from lp.scheduling.scheduler import Scheduler
from lp.scheduling.settings import PrefixReuse, SchedulerSettings
from lp.statistics import Statistics
from lp.step_cost import StepTimes
from lp.text.stopping import Stopping

log = logging.getLogger("lookahead")

T = TypeVar("T", bound=StrEnum)

NOT_A_NUMBER = "the model answered with something that is not a number (NaN); try dtype=float32 or bfloat16"


def _choice(kind: type[T], name: str, value: T | str) -> T:
    """One of the values of a setting. Raises ValueError naming all of them for another value."""
    try:
        return kind(value)
    except ValueError:
        raise ValueError(f"{name}={value!r} must be one of {', '.join(kind)}") from None


class Engine:
    """Serves requests on a runner.

    Python programs call `generate` and `stream`; a server drives `add_request`, `abort` and `step`.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        runner: Runner | None = None,
        request_builder: RequestBuilder | None = None,
        fingerprints: bool = False,
        step_times: StepTimes | None = None,
        index: AnswerIndex | None = None,
        budget: KVBudget | None = None,
        scheduler: SchedulerSettings | None = None,
        keep_times: KeepTimes | None = None,
        corpus: Corpus | None = None,
        is_alone: bool = False,
    ):
        """fingerprints: whether steps carry a checksum of their state. step_times: of the runner; None if unknown.
        index, corpus: for decode=auto. budget: the memory for keys and values. scheduler: how steps are filled.
        keep_times: gets the step times that were learnt; None to keep to `step_times`. is_alone: whether no other
        engine shares its steps, so that it need not be told when to use them.

        Engines that share steps with others get the same values of all of these but keep_times.
        """
        self.checkpoint, runner = checkpoint, runner or SingleDevice(checkpoint.model)
        self.request_builder = request_builder or RequestBuilder(checkpoint, roles=checkpoint.extensions)
        self.fingerprints, self.keep_times, self._is_alone = fingerprints, keep_times, is_alone
        self.history = DraftHistory(
            step_times, runner.num_parts, index, corpus=corpus, vocab_size=checkpoint.vocab_size
        )
        self._settings = scheduler or SchedulerSettings()
        self._outputs_of_streams: dict[str, deque[Output]] = {}
        self._serve_with(runner, step_times, budget or KVBudget(checkpoint.model.memory.num_pages))

    def _serve_with(self, runner: Runner, step_times: StepTimes | None, budget: KVBudget) -> None:
        """Begins to serve with a runner, without any request."""
        self.runner, self.request_builder.budget = runner, budget
        for extension in self.checkpoint.extensions.values():
            extension.find_cache = runner.find_cache if extension.shares_memory else None
            extension.is_ahead = runner.drafts_ahead
        if runner.drafts_ahead:
            log.info("draft model: where it pays, one rank computes a step, and the others draft ahead of it")
        if step_times is not None:
            runner.use_times(step_times)
        self.learner = step_times and StepTimesLearner(step_times, runner.num_parts)
        self.scheduler = Scheduler(runner, self._settings, budget, step_times, self.learner)
        self.scheduler.clock.learns = self.keep_times is not None
        self._trials: Trials | None = None
        self.planner = Planner(step_times, runner.num_parts, self.checkpoint.max_length, self.fingerprints)
        self.in_flight: deque[Batch] = deque()
        # Results of batches whose outputs have not been returned yet: a later start has failed.
        self.committed: list[Committed] = []

    @classmethod
    def assemble(cls, settings: EngineSettings, place: Topology | None = None) -> Engine:
        """Reads the weights, meets the other ranks, and measures step times if they are needed.

        place: this rank's place among the ranks of a run; None is a single device. Raises ValueError with a message for
        the user, and whatever the place raises if the ranks do not meet.
        """
        return cls(*make_parts(settings, place or SingleProcess()))

    @classmethod
    def from_pretrained(
        cls,
        path: str,
        dtype: str = "auto",
        device: str = "auto",
        decode: DecodingMethod | None = None,
        limits: DecodeLimits | None = None,
        compile: CompileMode | str = CompileMode.auto,
        step_times: StepTimesSource | str = StepTimesSource.auto,
        invariant: Invariance | str = Invariance.auto,
        index: str = "auto",
        corpus: str = "off",
        kv_memory: str = "auto",
        prefix_reuse: PrefixReuse | str = PrefixReuse.off,
        grammar_backend: GrammarBackend | str = GrammarBackend.auto,
        draft: SecondModel | None = None,
        second: SecondModel | None = None,
        heads: str = "auto",
        weights: Weights | str = Weights.auto,
    ) -> Engine:
        """An engine on one device. Raises ValueError with a message for the user if the checkpoint cannot be used.

        path: folder, GGUF file or hub id. dtype: float32, bfloat16, float16, or auto, which is float32 on a CPU and the
        checkpoint's own on a GPU. device: auto, cpu, cuda or cuda:N. decode: the method for prompts that choose none;
        None is `Auto`. limits: the most that a prompt may ask for. compile: whether to compile the forward: auto, on or
        off. step_times: auto, measure, fixed or off; see StepTimesSource.
        invariant: on refuses a model whose logits depend on the rows beside a row. index: the file of answers that
        launch/index.py made; auto is the one beside the weights, off is none. corpus: its file of texts, or off.
        kv_memory: the most memory for keys and values in GB, or auto. prefix_reuse: whose keys and values a prompt may
        begin from: off, owner or all. grammar_backend: auto, llguidance or xgrammar. draft: a model that drafts for
        decode=draft_model or auto. second: one for contrastive or best_of. heads: a folder for decode=medusa, or auto.
        weights: auto, or int8 or int4 to quantise them.
        """
        model = ModelSettings(str(path), dtype, device, kv_memory=str(kv_memory), heads=heads)
        model.compile = _choice(CompileMode, "compile", compile)
        model.invariant = _choice(Invariance, "invariant", invariant)
        model.grammar_backend = _choice(GrammarBackend, "grammar_backend", grammar_backend)
        model.weights = _choice(Weights, "weights", weights)
        settings = EngineSettings(model, decode, limits=limits or DecodeLimits(), draft=draft or SecondModel())
        settings.second, settings.index, settings.corpus = second or SecondModel(), index, corpus
        settings.step_times = _choice(StepTimesSource, "step_times", step_times)
        settings.scheduler.prefix_reuse = _choice(PrefixReuse, "prefix_reuse", prefix_reuse)
        return cls.assemble(settings)

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing to do for `step`."""
        return not (self.in_flight or self.committed or len(self.scheduler))

    @property
    def num_running(self) -> int:
        return sum(1 for _ in self.scheduler)

    def add_request(self, request: Request, tokens: Items[int] = ()) -> Output | None:
        """Adds a request, or one that continues after tokens which another engine has generated.

        Returns its end if it is refused, and all that it has so far if it continues.
        """
        self._end_trials()
        if refusal := self.scheduler.budget.refusal(request):
            return refusal
        if request.pooling and not self.request_builder.embeds:
            return Output(request.id, [], NO_HIDDEN, None, "unsupported", Statistics(len(request.prompt)))
        output = None
        for state in make_states(request, self.checkpoint, self.history, tokens):
            output = state.replay(tokens) if tokens else None
            if output is None or not output.finish_reason:
                self.scheduler.add(state)
        return output

    def abort(self, request_id: str) -> Output | None:
        """Ends a request. Returns its end, or None if it is not running."""
        found = [state for state in self.scheduler if state.request_id == request_id]
        for state in found:
            self.scheduler.abort(state)
        return found[-1].aborted() if found else None

    def generated(self) -> dict[str, list[int]]:
        """The tokens generated so far for every running request, by the request's id."""
        return {state.request_id: state.generated for state in self.scheduler}

    def resume(
        self,
        runner: Runner,
        requests: Iterable[tuple[Request, list[int]]],
        step_times: StepTimes | None,
        budget: KVBudget | None = None,
        finished: Iterable[FinishedSequence] = (),
        learnt: Items[Learnt] = (),
        keep_shared: bool = False,
    ) -> list[Output]:
        """Drops all requests and all steps in flight, and continues with the given requests from their token ids.

        runner: the present one, or another that holds the same sequences; KV caches that it holds are used again.
        requests: each with the tokens generated so far. step_times: of the runner, or of one like it. budget: None is
        the present one. finished: sequences that requests may begin from, open here or not. learnt: acceptance
        statistics of drafts, identical in all engines that share steps. Other draft state is dropped; keep_shared keeps
        the drafts that requests of one owner share. Returns each request's whole output so far.
        """
        self._end_trials()
        open_sequences = self.scheduler.clear()
        self.runner.abandon()
        self.history = self.history.following(step_times, runner.num_parts, learnt, keep_shared)
        self._serve_with(runner, step_times, budget or self.scheduler.budget)
        outputs = [self._resume_request(request, tokens, open_sequences) for request, tokens in requests]
        self.scheduler.keep_finished(finished, open_sequences)
        return outputs

    def _resume_request(self, request: Request, tokens: list[int], open_sequences: dict[str, Sequence]) -> Output:
        """open_sequences: those that the runner has open, by their ids. Those of this request are taken out."""
        if refusal := self.scheduler.budget.refusal(request):
            return refusal
        for state in make_states(request, self.checkpoint, self.history, tokens):
            known = open_sequences.pop(state.sequence.id, None)
            if known is None or not known.has_settings_of(state.sequence):
                if known is not None:
                    self.runner.close(known)
                self.runner.open(state.sequence)
            output = state.replay(tokens)
            if output.finish_reason:
                self.runner.close(state.sequence)
            else:
                self.scheduler.add_open(state)
        return output

    def step(self) -> list[Output]:
        """Schedules, plans and starts batches, then finishes the oldest one. Returns what it has added to each request.

        A device that works by itself gets its next batch before texts are made of this one's tokens. If that start
        fails, `committed` keeps the tokens, and the next call returns them.
        """
        if not self.committed:
            self._start_batches()
            if not self.in_flight:
                return []
            batch = self.in_flight.popleft()
            self.committed = self._finish(batch)
            try:
                if self.runner.is_asynchronous:
                    self._start_batches()
            finally:
                self.scheduler.account(batch)
        return self._make_outputs()

    def _start_batches(self) -> None:
        """Starts batches until the runner takes no more, or no request is ready for a step."""
        while len(self.in_flight) < self.runner.depth:
            if (batch := self.scheduler.schedule()) is None:
                return
            try:
                steps = self.planner.plan(batch)
                batch.started_at = time.perf_counter()
                self.runner.start(steps)
            except BaseException:
                self.scheduler.release(batch)
                raise
            self.in_flight.append(batch)

    def _finish(self, batch: Batch) -> list[Committed]:
        """Waits for a batch and adds its tokens to their sequences."""
        try:
            self.planner.draft_ahead(batch, self.runner)
            answers = self.runner.finish()
            self.planner.take_ahead(batch, self.runner)
        finally:  # if that fails, the requests may still continue with another runner
            self.scheduler.release(batch)
        return self.scheduler.commit(batch, answers)

    def _make_outputs(self) -> list[Output]:
        """Makes the outputs of what has been committed. The first one carries the engine's counts."""
        committed, self.committed = self.committed, []
        outputs = [one.state.output(one) for one in committed if not one.state.is_aborted]
        if outputs:
            outputs[0] = replace(outputs[0], engine=self.scheduler.take_counts())
        return outputs

    @property
    def _learning(self) -> StepTimesLearner | None:
        """The learner, if what it learns is used; else it only says what steps are expected to take."""
        return None if self.keep_times is None else self.learner

    @property
    def has_new_times(self) -> bool:
        """Whether step times were learnt by which all engines that share steps should decide."""
        return self._learning is not None and self._learning.has_change

    def take_new_times(self) -> StepTimes:
        """The step times that were learnt; `use_times` is called with them next, in all engines that share steps."""
        assert self.learner is not None
        return self.learner.take_change()

    def use_times(self, times: StepTimes) -> None:
        """Decides by these step times from now on, also for requests that have begun."""
        self.history.update_times(times)
        self.scheduler.set_step_times(times)
        self.planner.step_times = times
        self.runner.use_times(times)
        if self.keep_times is not None:
            self.keep_times(times)

    def next_trial(self) -> Trial | None:
        """A step whose time should be tried while nobody waits for one; None if enough is known."""
        return self._learning and self._learning.next_trial()

    def try_step(self, trial: Trial) -> None:
        """Runs a single step that nobody waits for, in all engines that share steps, and learns from it."""
        if self._trials is None:
            model = self.checkpoint.model
            self._trials = Trials(self.runner, model.vocab_size, model.max_length)
            if self._learning is not None:
                self._learning.learn(None)
        served = self._trials.run(trial)
        if self._learning is not None and served is not None:
            self._learning.learn(served)

    def _end_trials(self) -> None:
        if self._trials is not None:
            self._trials.close()
            self._trials = None
            if self.learner is not None:
                self.learner.learn(None)

    def reset_prefixes(self) -> None:
        """Forgets the keys and values of finished requests, in all processes that share steps together."""
        self.scheduler.reset_prefixes()

    def stream(
        self,
        prompt: Prompt,
        *,
        max_new_tokens: int | None = 128,
        decode: DecodingMethod | None = None,
        sampling: Sampling | None = None,
        stopping: Stopping | None = None,
        grammar: Grammar | None = None,
        trace: bool = False,
        **settings: Any,
    ) -> Iterator[Output]:
        """Yields what each step adds. Closing the iterator cancels the request.

        prompt: a text, token ids, or messages such as [{"role": "user", "content": "Hello"}], which the checkpoint's
        chat template turns into a text. max_new_tokens: used if `stopping` is not given; None is all the room in the
        context. grammar: what the text must be. trace: whether every step tells what it did (Output.trace). settings:
        single settings of Sampling, such as temperature=0.8, which replace those of `sampling`.
        Raises ValueError for settings or messages that cannot be used, FloatingPointError if the model answers NaN.
        """
        if settings:
            sampling = (sampling or Sampling()).changed(settings)
        stopping = stopping or Stopping(max_new_tokens=max_new_tokens)
        return self._steps(self.request_builder.build(prompt, decode, sampling, stopping, grammar=grammar, trace=trace))

    def _steps(self, request: Request) -> Iterator[Output]:
        if refusal := self.add_request(request):
            raise RequestTooLarge(refusal.text)
        unread = self._outputs_of_streams[request.id] = deque()
        try:
            while True:
                while not unread:
                    if self._is_alone and self.has_new_times:
                        self.use_times(self.take_new_times())
                    for output in self.step():
                        if output.request_id in self._outputs_of_streams:  # it may belong to another stream
                            self._outputs_of_streams[output.request_id].append(output)
                output = unread.popleft()
                if output.finish_reason == "error":
                    raise FloatingPointError(f"after {output.stats.tokens} tokens {NOT_A_NUMBER}")
                yield output
                if output.finish_reason:
                    return
        finally:
            del self._outputs_of_streams[request.id]
            self.abort(request.id)

    def embed(self, prompt: str | list[int], pooling: Pooling | str = Pooling.last) -> list[float]:
        """The embedding of a text or of token ids: the hidden state that the output embedding reads, of the last token
        or the mean of all (`pooling`: last or mean), [D], not normalised.

        Raises ValueError for a prompt that cannot be used, FloatingPointError if the model answers NaN.
        """
        *_, end = self._steps(self.request_builder.build_embedding(prompt, Pooling(pooling)))
        assert end.embedding is not None
        return end.embedding

    def generate(self, prompt: Prompt, **settings: Any) -> Completion:
        """Like `stream`, which names the settings, but returns the whole output at the end."""
        completion = Completion()
        for output in self.stream(prompt, **settings):
            completion.extend(output)
        return completion
