"""The engine: it takes requests and yields their tokens. It knows nothing of HTTP, configuration files or ranks.

Its loop is `step`: schedule, plan, run, commit. Given the same requests in the same order, the engines of all ranks go
through the same states.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from collections.abc import Sequence as Items
from dataclasses import replace
from typing import Any

from lp.assembly import EngineSettings, MeasureTimes, SingleProcess, Topology, make_parts
from lp.calibration.measure import StepTimesSource
from lp.drafting.answer_index import AnswerIndex
from lp.drafting.corpus import Corpus
from lp.drafting.history import DraftHistory, Learnt
from lp.generation import Committed, RequestState
from lp.grammar.settings import Grammar, GrammarBackend
from lp.model.beside.settings import SecondModel
from lp.model.checkpoint import Checkpoint, Invariance, ModelSettings
from lp.model.fast.choose import CompileMode
from lp.request import Completion, DecodeLimits, DecodingMethod, Output, Request, Sequence
from lp.request_builder import Prompt, RequestBuilder
from lp.runner import Runner
from lp.sampling.settings import Sampling
from lp.scheduling.batches import Batches
from lp.scheduling.begin import begin
from lp.scheduling.prefixes import Finished
from lp.scheduling.room import KVBudget, RequestTooLarge
from lp.scheduling.scheduler import Scheduler
from lp.scheduling.settings import PrefixReuse, SchedulerSettings
from lp.single_device import SingleDevice
from lp.step_cost import StepTimes
from lp.text.stopping import Stopping

NOT_A_NUMBER = "the model answered with something that is not a number (NaN); try dtype=float32 or bfloat16"


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
        room: KVBudget | None = None,
        scheduler: SchedulerSettings | None = None,
        measure_times: MeasureTimes | None = None,
        corpus: Corpus | None = None,
    ):
        """fingerprints: whether steps carry a checksum of their state, which ranks compare. step_times: the runner's;
        None if unknown. index, corpus: for decode=auto. room: for keys and values. All of these are the same on all
        ranks. scheduler: how steps are filled. measure_times: see MeasureTimes.
        """
        self.checkpoint, runner = checkpoint, runner or SingleDevice(checkpoint.model)
        self.request_builder = request_builder or RequestBuilder(checkpoint, second_models=checkpoint.beside)
        self.fingerprints, self.measure_times = fingerprints, measure_times
        self.history = DraftHistory(step_times, runner.num_parts, index, corpus=corpus)
        self._settings = scheduler or SchedulerSettings()
        self.scheduler = Scheduler(room or KVBudget(checkpoint.model.memory.num_pages))
        self.request_builder.room = self.scheduler.room
        self.batches = self._make_batches(runner, step_times)
        self._failure: Exception | None = None  # why steps could not be started ahead
        self._streams: dict[str, deque[Output]] = {}

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
    ) -> Engine:
        """An engine on one device. Raises ValueError with a message for the user if the checkpoint cannot be used.

        path: folder, GGUF file or hub id. dtype: float32, bfloat16, float16, or auto, which is float32 on a CPU and the
        checkpoint's own on a GPU. device: auto, cpu, cuda or cuda:N. decode: the method for prompts that choose none;
        None is `Auto`. limits: the most that a prompt may ask for. compile: whether to compile the forward: auto, on or
        off. step_times: auto takes those on the disk or measures them, measure always measures, off goes without.
        invariant: on refuses a model whose logits depend on the rows beside a row. index: the file of answers that
        launch/index.py made; auto is the one beside the weights, off is none. corpus: its file of texts, or off.
        kv_memory: the most memory for keys and values in GB, or auto. prefix_reuse: whose keys and values a prompt may
        begin from: off, owner or all. grammar_backend: auto, llguidance or xgrammar. draft: a model that drafts for
        decode=draft_model or auto. second: one for contrastive or best_of. heads: a folder for decode=medusa, or auto.
        """
        model = ModelSettings(str(path), dtype, device, compile=CompileMode(compile), invariant=Invariance(invariant))
        model.kv_memory, model.heads, model.grammar_backend = str(kv_memory), heads, GrammarBackend(grammar_backend)
        settings = EngineSettings(model, decode, limits=limits or DecodeLimits(), draft=draft or SecondModel())
        settings.second, settings.index, settings.corpus = second or SecondModel(), index, corpus
        settings.step_times, settings.scheduler.prefix_reuse = StepTimesSource(step_times), PrefixReuse(prefix_reuse)
        return cls.assemble(settings)

    @property
    def runner(self) -> Runner:
        return self.batches.runner

    @property
    def is_idle(self) -> bool:
        return not len(self.batches) and not len(self.scheduler)

    @property
    def num_running(self) -> int:
        return sum(1 for _ in self.generations())

    def generations(self) -> Iterator[RequestState]:
        """All generations: first those that wait for their next step, then those with a step under way."""
        yield from self.scheduler
        yield from self.batches.generations()

    def _make_batches(self, runner: Runner, times: StepTimes | None) -> Batches:
        return Batches(self.scheduler, self._settings, runner, self.checkpoint.max_length, times, self.fingerprints)

    def add_request(self, request: Request, tokens: Items[int] = ()) -> Output | None:
        """Adds a request, or one that goes on after tokens which another engine has generated.

        Returns its end if there can never be room for it, and all that it has so far if it goes on.
        """
        if refusal := self.scheduler.room.refusal(request):
            return refusal
        progress = None
        for generation in begin(request, self.checkpoint, self.history, tokens):
            progress = generation.replay(tokens) if tokens else None
            if progress is None or not progress.finish_reason:
                self.batches.open(generation)
        return progress

    def abort(self, request_id: str) -> Output | None:
        """Ends a request at once. Returns None if it is not running."""
        found = [generation for generation in self.generations() if generation.request_id == request_id]
        for generation in found:
            if generation not in self.scheduler:
                self.batches.withdraw(generation)
            self.batches.end(generation)
        if self.is_idle:  # what could not be started is not wanted any more
            self._failure = None
        return found[-1].cancelled() if found else None

    def generated(self) -> dict[str, list[int]]:
        """The tokens generated so far for every running request, by the request's id."""
        return {generation.request_id: generation.generated for generation in self.generations()}

    def resume(
        self,
        runner: Runner,
        requests: Iterable[tuple[Request, list[int]]],
        step_times: StepTimes | None,
        room: KVBudget | None = None,
        finished: Iterable[Finished] = (),
        learnt: Items[Learnt] = (),
        keeps_shared: bool = False,
    ) -> list[Output]:
        """Continues the given requests from their token ids, and drops all steps under way and all other requests.

        runner: the present one, or another that holds the same sequences; KV caches that it holds are used again.
        requests: all that run from now on, each with the tokens generated so far. step_times: the runner's, or those of
        one like it. room: None is the present one. finished: sequences from which requests may begin, held here or not,
        none of them of such a request. learnt: about drafts, the same on all ranks; all else known of them is forgotten
        but, if keeps_shared, what requests of one owner share. Returns each request's whole output so far.
        """
        sequences = [generation.sequence for generation in self.generations()]
        held = {sequence.id: sequence for sequence in (*self.batches.prefixes.take_all(), *sequences)}
        self.runner.abandon()
        self.scheduler.clear()
        self.scheduler.room = self.request_builder.room = room or self.scheduler.room
        self._failure = None
        self.history = self.history.following(step_times, runner.num_parts, learnt, keeps_shared)
        self.batches = self._make_batches(runner, step_times)
        replayed = [self._resume_one(request, tokens, held) for request, tokens in requests]
        self.batches.keep(finished, held)
        return replayed

    def _resume_one(self, request: Request, tokens: list[int], held: dict[str, Sequence]) -> Output:
        """held: the sequences that the runner has open, by their ids. Those of this request are taken out."""
        if refusal := self.scheduler.room.refusal(request):
            return refusal
        for generation in begin(request, self.checkpoint, self.history, tokens):
            known = held.pop(generation.sequence.id, None)
            if known is None or not known.has_settings_of(generation.sequence):
                if known is not None:
                    self.runner.close(known)
                self.runner.open(generation.sequence)
            progress = generation.replay(tokens)
            if progress.finish_reason:
                self.runner.close(generation.sequence)
            else:
                self.scheduler.add(generation)
        return progress

    def step(self) -> list[Output]:
        """Starts as many batches of steps as the runner takes, then finishes the oldest one.

        Where the device works by itself, the next batches are started before anything is made of what this one has
        yielded. If that fails, the next call raises the error, so that nothing of what this batch has yielded is lost.
        """
        if self._failure:
            failure, self._failure = self._failure, None
            raise failure
        told = [generation.tell(step) for generation, step in self._settle_and_start()]
        if told:
            told[0] = replace(told[0], engine=self.batches.take_counts())
        return told

    def _settle_and_start(self) -> list[tuple[RequestState, Committed]]:
        """Adds the tokens of the oldest batch, and starts the next ones if the device works by itself."""
        self.batches.start()
        settled = self.batches.finish()
        if self.batches.runner.is_asynchronous:
            try:
                self.batches.start()
            except Exception as error:
                self._failure = error
        return settled

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
        unread = self._streams[request.id] = deque()
        try:
            while True:
                while not unread:
                    for progress in self.step():
                        if progress.request_id in self._streams:  # it may belong to another stream
                            self._streams[progress.request_id].append(progress)
                progress = unread.popleft()
                if progress.finish_reason == "error":
                    raise FloatingPointError(f"after {progress.stats.tokens} tokens {NOT_A_NUMBER}")
                yield progress
                if progress.finish_reason:
                    return
        finally:
            del self._streams[request.id]
            self.abort(request.id)

    def generate(self, prompt: Prompt, **settings: Any) -> Completion:
        """Like `stream`, which names the settings, but returns the whole output at the end."""
        completion = Completion()
        for progress in self.stream(prompt, **settings):
            completion.extend(progress)
        return completion
