"""The engine: requests in, token streams out. It knows nothing of HTTP, of configuration files or of ranks.

Several requests are served in turn, a step each, so that a long one does not starve a short one; a runner may take
several steps at the same time, of different requests. Given the same
requests in the same order, every rank that runs an engine goes through the same states.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

from lp.calibration.calibrate import resolve_step_times
from lp.calibration.measure import StepTimesSource
from lp.drafting.history import DraftHistory
from lp.generation import Generation
from lp.methods import Auto, DecodeLimits, DecodeSettings
from lp.model.checkpoint import Checkpoint, ModelSettings, load
from lp.model.fast.choose import CompileMode
from lp.request import Completion, Progress, Request, Sequence
from lp.request_builder import Prompt, RequestBuilder
from lp.runner import Runner, SingleDevice
from lp.sampling.settings import Sampling
from lp.step_cost import StepTimes
from lp.stopping import Stopping

NOT_A_NUMBER = "the model answered with something that is not a number (NaN); try dtype=float32 or bfloat16"


class Engine:
    """Serves requests on a runner.

    Python's face is `generate` and `stream`; a server drives `submit`, `cancel` and `step`.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        runner: Runner | None = None,
        request_builder: RequestBuilder | None = None,
        fingerprints: bool = False,
        step_times: StepTimes | None = None,
    ):
        """fingerprints: give every step a checksum of the decoder's state, for ranks to compare. step_times: of the
        runner, the same on all ranks; None where they are not known.
        """
        self.checkpoint = checkpoint
        self.runner = runner or SingleDevice(checkpoint.model)
        self.request_builder = request_builder or RequestBuilder(checkpoint)
        self.fingerprints = fingerprints
        self.history = DraftHistory(step_times)
        self._turns: deque[Generation] = deque()  # whose next step has not begun
        self._under_way: deque[Generation] = deque()
        self._streams: dict[str, deque[Progress]] = {}

    @classmethod
    def from_pretrained(
        cls,
        path: str,
        dtype: str = "float32",
        device: str = "auto",
        decode: DecodeSettings | None = None,
        limits: DecodeLimits | None = None,
        compile: CompileMode | str = CompileMode.auto,
        step_times: StepTimesSource | str = StepTimesSource.auto,
    ) -> Engine:
        """An engine on one device. Raises ValueError with a message for the user if the checkpoint cannot be used.

        compile: see CompileMode. step_times: where what decode=auto chooses by comes from.
        """
        settings = ModelSettings(path=str(path), dtype=dtype, device=device, compile=CompileMode(compile))
        checkpoint = load(settings)
        request_builder, runner = RequestBuilder(checkpoint, decode, limits=limits), SingleDevice(checkpoint.model)
        default, times = request_builder.decode, None
        if isinstance(default, Auto) and not default.rows:
            times = resolve_step_times(StepTimesSource(step_times), checkpoint.model, runner, default.max_rows)
        return cls(checkpoint, runner, request_builder, step_times=times)

    @property
    def is_idle(self) -> bool:
        return self.num_running == 0

    @property
    def num_running(self) -> int:
        return len(self._turns) + len(self._under_way)

    def submit(self, request: Request) -> None:
        """Takes a request in; its first step is the last in turn."""
        generation = Generation(request, self.checkpoint, self.history)
        self.runner.open(generation.sequence)
        self._turns.append(generation)

    def cancel(self, request_id: str) -> Progress | None:
        """Ends a request at once. None if it is not running (any more)."""
        for generations in (self._turns, self._under_way):
            for generation in generations:
                if generation.sequence.id == request_id:
                    generations.remove(generation)
                    if generations is self._under_way:
                        self.runner.finish(generation.sequence)
                    self.runner.close(generation.sequence)
                    return generation.cancelled()
        return None

    def generated(self) -> dict[str, list[int]]:
        """Tokens so far of every request that is running, by its id."""
        sequences = [generation.sequence for generation in (*self._turns, *self._under_way)]
        return {sequence.id: sequence.tokens[sequence.prompt_length :] for sequence in sequences}

    def resume(
        self, runner: Runner, requests: Iterable[tuple[Request, list[int]]], step_times: StepTimes | None
    ) -> list[Progress]:
        """Goes on from token ids alone, whatever was under way.

        runner: the one until now, or another that holds the same sequences. step_times: of the runner, or of one like
        it. requests: all that run from now on, with the tokens that they have. Caches of theirs that the runner holds
        are used; other requests are dropped, and what had been learnt about drafts is forgotten, so that engines with
        different pasts become the same. Returns what each request has, from its first token on; its end may be there.
        """
        held = {generation.sequence.id: generation.sequence for generation in (*self._turns, *self._under_way)}
        self._turns.clear()
        self._under_way.clear()
        self.runner, self.history = runner, DraftHistory(step_times)
        replayed = [self._take_up(request, tokens, held.pop(request.id, None)) for request, tokens in requests]
        for sequence in held.values():
            runner.close(sequence)
        return replayed

    def _take_up(self, request: Request, tokens: list[int], held: Sequence | None) -> Progress:
        """held: as the runner knows the sequence, if it does."""
        generation = Generation(request, self.checkpoint, self.history, tokens)
        if held is None:
            self.runner.open(generation.sequence)
        progress = generation.replay(tokens)
        if progress.finish_reason:
            self.runner.close(generation.sequence)
        else:
            self._turns.append(generation)
        return progress

    def step(self) -> Progress:
        """Brings the next step to its end, after setting as many under way as the runner takes."""
        while self._turns and len(self._under_way) < self.runner.depth:
            self._start(self._turns[0])  # it keeps its turn meanwhile: should this fail, it can still be cancelled
            self._under_way.append(self._turns.popleft())
        generation = self._under_way.popleft()  # should its step fail, there is nothing left to wait for
        answers = self.runner.finish(generation.sequence)
        accepted, drafted = generation.decoder.commit(generation.sequence.tokens, answers)
        progress = generation.absorb(answers, accepted, drafted)
        if progress.finish_reason:
            self.runner.close(generation.sequence)
        else:
            self._turns.append(generation)
        return progress

    def _start(self, generation: Generation) -> None:
        sequence = generation.sequence
        generation.stats.start_step()
        if self.fingerprints:
            sequence.fingerprint = generation.fingerprint()
        room = self.checkpoint.max_length - len(sequence.tokens)
        generation.tree = generation.decoder.plan(sequence.tokens, room, wanted=generation.stop.num_left)
        sequence.num_candidates = generation.decoder.num_candidates
        self.runner.start(sequence, generation.tree)

    def stream(
        self,
        prompt: Prompt,
        *,
        max_new_tokens: int | None = 128,
        decode: DecodeSettings | None = None,
        sampling: Sampling | None = None,
        stopping: Stopping | None = None,
    ) -> Iterator[Progress]:
        """Yields what each step adds. Closing the iterator cancels the request.

        max_new_tokens: used if `stopping` is not given; None is all the room in the context. Raises ValueError for
        settings that cannot be used, FloatingPointError if the model answers with something that is not a number.
        """
        stopping = stopping or Stopping(max_new_tokens=max_new_tokens)
        request = self.request_builder.build(prompt, decode, sampling, stopping)
        return self._steps(request)

    def _steps(self, request: Request) -> Iterator[Progress]:
        self.submit(request)
        unread = self._streams[request.id] = deque()
        try:
            while True:
                while not unread:
                    progress = self.step()
                    if progress.request_id in self._streams:  # another stream may have had its turn
                        self._streams[progress.request_id].append(progress)
                progress = unread.popleft()
                if progress.finish_reason == "error":
                    raise FloatingPointError(f"after {progress.stats.tokens} tokens {NOT_A_NUMBER}")
                yield progress
                if progress.finish_reason:
                    return
        finally:
            del self._streams[request.id]
            self.cancel(request.id)

    def generate(
        self,
        prompt: Prompt,
        *,
        max_new_tokens: int | None = 128,
        decode: DecodeSettings | None = None,
        sampling: Sampling | None = None,
        stopping: Stopping | None = None,
    ) -> Completion:
        """Like `stream`, all at once."""
        completion = Completion()
        for progress in self.stream(
            prompt, max_new_tokens=max_new_tokens, decode=decode, sampling=sampling, stopping=stopping
        ):
            completion.extend(progress)
        return completion
