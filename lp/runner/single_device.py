"""The runner of a single device. It holds one model and, for every sequence, a KV cache and a sampler."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from typing import Any

from torch import Tensor

from lp.kv_cache.cache import KVCache
from lp.kv_cache.recurrent import copied_length
from lp.model.causal import CausalModel
from lp.model.fast_forward import Choosing, SequenceRows
from lp.model.gpu.device import current
from lp.model.heads.hidden import add_hidden, run_with_hidden
from lp.request import Sequence
from lp.runner.runner import Runner, StepInput
from lp.runner.second_model import SecondModelStates
from lp.runner.sequence_state import SequenceState
from lp.sampling.batch import Asked, launch_all, side_by_side
from lp.sampling.choosers import KINDS, NUM_BEST, TRUNCATED, can_fuse
from lp.tree import Answers

# Waits for the answers of a batch of steps that was started.
Pending = Callable[[], list[Answers]]


class ForwardRunner(Runner, ABC):
    """A runner that gives the device all its work in `start`, and waits for answers in `finish`."""

    def __init__(self) -> None:
        self._under_way: deque[Pending] = deque()

    @property
    @abstractmethod
    def is_asynchronous(self) -> bool: ...

    @property
    @abstractmethod
    def cache_bytes(self) -> int: ...

    @abstractmethod
    def open(self, sequence: Sequence) -> None: ...

    @abstractmethod
    def copy(self, source: Sequence, target: Sequence, length: int) -> int: ...

    @abstractmethod
    def drop(self, sequence: Sequence) -> None: ...

    @abstractmethod
    def close(self, sequence: Sequence) -> None: ...

    @abstractmethod
    def launch(self, steps: list[StepInput]) -> Pending:
        """Gives the device a batch of steps. Returns what waits for the answers for every row of their trees."""

    def start(self, steps: list[StepInput]) -> None:
        self._under_way.append(self.launch(steps))

    def finish(self) -> list[Answers]:
        return self._under_way.popleft()()

    def abandon(self) -> None:
        self._under_way.clear()


class SingleDevice(ForwardRunner):
    """One model on one device."""

    def __init__(self, model: CausalModel, prefill_chunk: int | None = None):
        """prefill_chunk: most rows of a prompt in one forward; None are as many as the model should be given."""
        super().__init__()
        self.model = model
        self.prefill_chunk = prefill_chunk or model.prefill_chunk
        self.second = model.second and SecondModelStates(model.second, prefill_chunk or model.second.prefill_chunk)
        self.states: dict[str, SequenceState] = {}
        if can_fuse(model.device):
            names = [name for name in KINDS if name != TRUNCATED or model.vocab_size > NUM_BEST]
            model.capture_choosing({name: KINDS[name] for name in names})

    @property
    def cache_bytes(self) -> int:
        return sum(state.cache.num_bytes for state in self.states.values())

    def open(self, sequence: Sequence) -> None:
        self.states[sequence.id] = SequenceState.begin(sequence, self.model)
        if self.second:
            self.second.open(sequence)

    @property
    def is_asynchronous(self) -> bool:
        return self.model.device.type != "cpu"

    def launch(self, steps: list[StepInput]) -> Pending:
        """Computes the steps' trees in one forward, and with them the tokens that the caches lack: of prompts, or those
        that other ranks have computed. A CPU is done when this returns, a GPU is not.
        """
        try:
            return self._launch(steps)
        except BaseException:
            for step in steps:
                self.states[step.sequence.id].forget_last()
                if self.second and (state := self.second.states.get(step.sequence.id)):
                    state.forget_last()
            raise

    def _launch(self, steps: list[StepInput]) -> Pending:
        if len(steps) == 1 and len(steps[0].tree):
            return self._launch_alone(steps[0])
        given = self.rows_of(steps)
        # A sequence without a tree may lack nothing. Those that are answered alike lie side by side.
        prefilled = [number for number, step in enumerate(steps) if not len(step.tree) and len(given[number].tree)]
        with_tree = [number for number, step in enumerate(steps) if len(step.tree)]
        asked = self.asked_all(steps)
        order = side_by_side(asked)
        with_tree, asked = [with_tree[number] for number in order], [asked[number] for number in order]
        wait_for_all = self._compute([given[number] for number in (*prefilled, *with_tree)], asked)

        def wait() -> list[Answers]:
            answers = [Answers.none() for _ in steps]
            for number, own in zip(with_tree, wait_for_all(), strict=True):
                answers[number] = own
            return answers

        return wait

    def _launch_alone(self, step: StepInput) -> Pending:
        """What `launch` does, for a single step that is answered."""
        state, sequence = self.states[step.sequence.id], step.sequence
        state.keep_accepted(sequence.tokens)
        if step.num_computed - state.cache.length > self.prefill_chunk:
            self.make_room([step])
        return self._compute([self._rows(step)], self.asked_all([step]))

    def asked_all(self, steps: list[StepInput]) -> list[Asked]:
        """How the rows of all steps that have a tree are to be answered. A second model runs these rows at once."""
        asked = [self.asked(step) for step in steps if len(step.tree)]
        return self.second.add_to(asked, steps) if self.second and self.second.states else asked

    def asked(self, step: StepInput) -> Asked:
        asked = self.states[step.sequence.id].sampler.ask(step.tree, step.sequence.tokens, step.num_candidates)
        sequence = step.sequence
        if not sequence.ahead and not sequence.num_hidden:
            return asked
        return asked._replace(ahead=step.ahead, num_hidden=sequence.num_hidden)

    def _compute(self, given: list[SequenceRows], asked: list[Asked]) -> Pending:
        """Runs the rows, and has the last sequences' answered, by the graphs that choose tokens where there are any."""
        if not given:
            return list
        if any(one.ahead or one.num_hidden for one in asked):
            logits, hidden = run_with_hidden(self.model, given)
            return add_hidden(self.answer(asked, logits), asked, hidden, self.model.heads)
        if (fast := self.model.fast) and fast.chooses_tokens:
            num_computed = len(given) - len(asked)
            how: list[Choosing | None] = [None] * num_computed
            how += [Choosing(kind, one.choices) if (kind := one.graph_kind) else None for one in asked]
            if computed := self.model.compute(given, how):
                rows = computed.rows[num_computed:]
                return self.answer(asked, computed.logits, rows, computed.choose, computed.is_lasting)
        return self.answer(asked, self.logits_of(given))

    def logits_of(self, given: list[SequenceRows]) -> Tensor:
        """Runs the rows of some sequences; returns the logits that are wanted (see CausalModel.forward_many)."""
        return self.model.forward_many(given)

    def answer(self, asked: list[Asked], logits: Tensor, *how: Any) -> Callable[[], list[Answers]]:
        """Has the device answer rows by their logits; see `launch_all`."""
        with current(self.model.device):
            return launch_all(asked, logits, *how)

    def rows_of(self, steps: list[StepInput]) -> list[SequenceRows]:
        """The rows of each step's last forward, once what is too much for one forward has been computed."""
        if self._keep_accepted(steps) > self.prefill_chunk:
            self.make_room(steps)
        return [self._rows(step) for step in steps]

    def _keep_accepted(self, steps: list[StepInput]) -> int:
        """Keeps what was accepted of each sequence. Returns the most tokens that one of them lacks."""
        longest = 0
        for step in steps:
            state, sequence = self.states[step.sequence.id], step.sequence
            state.keep_accepted(sequence.tokens)
            longest = max(longest, step.num_computed - state.cache.length)
        return longest

    def _rows(self, step: StepInput) -> SequenceRows:
        state = self.states[step.sequence.id]
        if step.num_computed - state.cache.length > self.prefill_chunk:
            for part in state.prefill(step, self.prefill_chunk):
                self.logits_of([SequenceRows(part, state.cache, 0)])
        only_best = state.sampler.wants_best_alone(step.tree)
        return SequenceRows(state.attach(step), state.cache, len(step.tree), only_best)

    def copy(self, source: Sequence, target: Sequence, length: int) -> int:
        if self.model.is_recurrent:
            length = copied_length(length, len(source.tokens) - 1, source.prompt_length - 1)
        self.states[target.id].take_from(self.states[source.id], source.tokens, length)
        if self.second:
            self.second.copy(source, target, length)
        return length

    def drop(self, sequence: Sequence) -> None:
        self.states[sequence.id].drop()
        if self.second:
            self.second.drop(sequence)

    def committed_cache(self, sequence: Sequence) -> KVCache:
        """A sequence's cache with what was accepted of its last step. No step of it may be under way."""
        state = self.states[sequence.id]
        state.keep_accepted(sequence.tokens)
        return state.cache

    def make_room(self, steps: list[StepInput]) -> None:
        """Makes room for all that these steps compute, so that nothing of one is evicted for another."""
        caches = [self.committed_cache(step.sequence) for step in steps]
        pairs = zip(caches, steps, strict=True)
        self.model.memory.reserve(
            [(cache, max(0, one.num_computed - cache.length) + len(one.tree)) for cache, one in pairs]
        )

    def num_cached(self, sequence_id: str, tokens: list[int]) -> int:
        """How many of a sequence's first tokens have keys and values here; 0 if the sequence is not open."""
        state = self.states.get(sequence_id)
        return state.num_kept(tokens) if state else 0

    def find_cache(self, sequence_id: str, tokens: list[int]) -> KVCache | None:
        if (state := self.states.get(sequence_id)) is None:
            return None
        state.keep_accepted(tokens)
        return state.cache

    def close(self, sequence: Sequence) -> None:
        self.states.pop(sequence.id).cache.release()
        if self.second:
            self.second.close(sequence)
