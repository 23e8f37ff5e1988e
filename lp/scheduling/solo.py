"""The steps of a sequence that has the engine for itself, on a device that works by itself.

Between its answers and its next start as little as possible is called, as Python code that has not run for a while
takes most of that time. All is made ready while the device computes. When the answers come, the library learns from
them and plans the next tree in one call, and the runner starts it. Everything else is done after that.
"""

from __future__ import annotations

import time

from lp.decoding.auto import AutoDecoder
from lp.drafting.native.drafter import Found, Ready
from lp.generation import Committed, RequestState
from lp.runner import GoesOn, StepInput
from lp.verification import Answers


class Solo:
    """The step under way of a generation that is alone, and all that is ready to start the next one.

    Once `go_on` was called: answers, answered_at: of the step, and when they came. step: the next one. started_at: when
    it was started. error: why it could not be; None if it was, or was not tried.
    """

    def __init__(self, generation: RequestState, runner: GoesOn, step: StepInput, ready: Ready, ends: frozenset[int]):
        """step: the next one, but for what is not known yet. ready: for the answers. ends: tokens that end the text."""
        self.generation, self.step = generation, step
        self._runner, self._ready, self._ends = runner, ready, ends
        self._most, self._tree = generation.stop.num_left, ready.tree
        self._found: Found
        self.answers: Answers
        self.answered_at = self.started_at = 0.0
        self.error: Exception | None = None

    @staticmethod
    def of(generation: RequestState, runner: GoesOn) -> Solo | None:
        """What is made ready while a generation's step is under way; None if its next one must be planned otherwise."""
        decoder, sequence = generation.decoder, generation.sequence
        ends = generation.stop.certain_ends(generation.text)
        if ends is None or generation.scores or generation.recorder or not isinstance(decoder, AutoDecoder):
            return None
        under_way = StepInput.of(sequence, generation.tree, decoder.num_candidates)
        if not runner.may_go_on(under_way) or (ready := decoder.ready()) is None:
            return None
        step = StepInput(sequence, ready.tree, 0, decoder.num_candidates, is_shared=decoder.is_shared)
        return Solo(generation, runner, step, ready, ends)

    def go_on(self) -> bool:
        """Waits for the answers, learns from them, and starts the next step. Returns False, with nothing started, if
        the sequence ends, or no tree was planned.
        """
        (self.answers,) = (answers,) = self._runner.finish()
        self.answered_at = time.perf_counter()
        given = answers.targets if answers.candidates is None else answers.candidates
        self._found = found = self._ready.go_on(given)
        tokens, rows, _, path, num_rows = found
        if not num_rows or not path or len(tokens) >= self._most or not self._ends.isdisjoint(tokens):
            return False
        step, all_tokens = self.step, self.step.sequence.tokens
        all_tokens += tokens
        step.num_fed, self._tree.__dict__["num_rows"] = len(all_tokens) - 1, num_rows
        self.started_at = time.perf_counter()
        try:
            self._runner.go_on(step, rows)
        except Exception as error:
            self.error = error
        return True

    def settled(self, max_length: int) -> Committed:
        """What the finished step has added, once all know of it. max_length: most tokens of a sequence."""
        self.hand_over()
        settled = self.generation.settle_added(self.answers)
        self.generation.plan(max_length - len(self.generation.sequence.tokens))
        return settled

    def hand_over(self) -> None:
        """Tells the decoder what the library has found. Its `commit` then returns it."""
        assert isinstance(self.generation.decoder, AutoDecoder)
        self.generation.decoder.take_over(self._found, self._tree)
