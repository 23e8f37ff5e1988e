"""Pipeline parallelism: every rank holds a stage of the model's layers (Huang et al., GPipe, arXiv 1811.06965).

All ranks plan the same trees and keep the same rows in their caches. Hidden states go from stage to stage; the last
stage chooses the tokens and sends them to all others. As many batches of steps as there are stages may be under way,
each step of another sequence: with a single sequence, stages wait for one another. Knows nothing of how a model is cut
into stages.

    S stages, R rows of a step's tree, F rows of a forward: a chunk of a prompt, or a trunk and the tree,
    H integers of a header, C columns of packed answers (see Answers.pack)

On a GPU, messages are only launched: a stage before the last neither waits for hidden states nor reads the headers that
come with them, so it can launch a step while the step before is under way. Only answers are awaited.

From stage to stage goes one message of bytes for each forward: the headers as int32 [S, H], then the hidden states
[F, hidden] in the model's dtype. From the last stage to all others goes one message for each step: the headers and then
the answers, int32 [S * H + R * C].
"""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lp.hardware import upload
from lp.model.causal import CausalModel
from lp.model.kv_cache import KVCache
from lp.request import Sequence
from lp.runner import StepInput
from lp.single_device import SequenceState
from lp.tree import TokenTree
from lp.verification import Answers
from parallel.comm.base import Collectives
from parallel.comm.channel import HEADER, Channel


class PipelineParallel:
    """A Runner of one stage. All ranks call it with the same trees in the same order.

    It needs no `Channel.gather` for the headers of a step: each stage adds its own header to the message for the next
    one, and the last stage sends all of them back with the answers.
    """

    num_parts = num_replicas = 1
    is_asynchronous = False

    def __init__(self, model: CausalModel, pipeline: Collectives, channel: Channel, prefill_chunk: int = 512):
        """model: this rank's stage. pipeline: collectives among all ranks of the channel, in the order of their stages.
        prefill_chunk: most rows of a prompt in one forward; while a stage computes one chunk, the stage before it
        computes the next.
        """
        assert pipeline.num_ranks == channel.num_ranks, "every rank is a stage"
        self.model = model
        self.pipeline = pipeline
        self.channel = channel
        self.prefill_chunk = prefill_chunk
        self.depth = pipeline.num_ranks
        self.states: dict[str, SequenceState] = {}
        self._under_way: deque[list[StepInput]] = deque()
        # Headers and answers of the steps that have not been finished yet; used on the last stage only.
        self._published: deque[np.ndarray] = deque()

    @property
    def cache_bytes(self) -> int:
        return sum(state.cache.num_bytes for state in self.states.values())

    def open(self, sequence: Sequence) -> None:
        self.states[sequence.id] = SequenceState.begin(sequence, self.model)

    def copy(self, source: Sequence, target: Sequence, length: int) -> None:
        self.states[target.id].take_from(self.states[source.id], source.tokens, length)

    def drop(self, sequence: Sequence) -> None:
        self.states[sequence.id].drop()

    def close(self, sequence: Sequence) -> None:
        self.states.pop(sequence.id).cache.release()

    def start(self, steps: list[StepInput]) -> None:
        """Computes this stage's layers for each step. Waits for the stage before it, but not for answers."""
        for step in steps:
            self._compute(step)
        self._under_way.append(steps)

    def finish(self) -> list[Answers]:
        """Waits for the last stage's answers. Raises StateDiverged, on all ranks alike, and RankLost."""
        return [self._result(step) for step in self._under_way.popleft()]

    def abandon(self) -> None:
        while self._under_way:
            self.finish()

    def _compute(self, step: StepInput) -> None:
        tokens, state = step.sequence.tokens, self.states[step.sequence.id]
        state.keep_accepted(tokens)
        for part in state.prefill(step, self.prefill_chunk):
            self._forward(part, state.cache, num_logits=1)
        rows = state.attach(step)
        logits, headers = self._forward(rows, state.cache, len(step.tree), step.fingerprint)
        if self._is_last:
            answers = state.sampler.answers(logits, step.tree, tokens, step.num_candidates)
            self.pipeline.settle()  # or the answers are not to be trusted
            self._publish(np.concatenate([headers.cpu().numpy().ravel(), answers.pack().ravel()]))

    def _result(self, step: StepInput) -> Answers:
        """The answers of the oldest step that has not been finished, which must be `step`."""
        num_columns = step.num_columns
        if self._is_last:
            result = self._published.popleft()
        else:
            length = self.depth * HEADER + len(step.tree) * num_columns
            received = self.pipeline.receive((length,), torch.int32, self.depth - 1)
            self.pipeline.settle()
            result = received.cpu().numpy()
        headers, packed = np.split(result, [self.depth * HEADER])
        self.channel.heard(headers.reshape(self.depth, HEADER))
        return Answers.unpack(packed.reshape(-1, num_columns), step.num_candidates)

    @property
    def _is_first(self) -> bool:
        return self.pipeline.rank == 0

    @property
    def _is_last(self) -> bool:
        return self.pipeline.rank == self.depth - 1

    def _forward(self, tree: TokenTree, cache: KVCache, num_logits: int, fingerprint: int = 0) -> tuple[Tensor, Tensor]:
        """Logits [num_logits, V] (meaningless before the last stage) and headers [S, H] of the stages up to this one.

        V is the vocabulary size. Both are on the device.
        """
        own = np.zeros((self.depth, HEADER), dtype=np.int32)
        own[self.pipeline.rank] = self.channel.header(fingerprint)
        headers, incoming = upload(own, self.model.device), None
        if not self._is_first:
            before, incoming = self._receive_hidden(len(tree))
            headers = headers + before  # no two stages have a row in common
        logits, step = self.model.forward_eager(tree, cache, num_logits if self._is_last else 1, incoming)
        if not self._is_last:
            assert step.outgoing is not None, "a stage before the last has stand-ins for later layers"
            self._send_hidden(headers, step.outgoing)
        return logits, headers

    def _send_hidden(self, headers: Tensor, hidden: Tensor) -> None:
        """Sends one message to the next stage, with the headers' bytes first."""
        parts = [headers, hidden.contiguous()]
        self.pipeline.send(torch.cat([part.view(-1).view(torch.uint8) for part in parts]), self.pipeline.rank + 1)

    def _receive_hidden(self, num_rows: int) -> tuple[Tensor, Tensor]:
        """Headers [S, H] and hidden states [1, F, hidden] from the stage before, on the device. num_rows: F."""
        config: Any = self.model.model.config.get_text_config(decoder=True)
        num_header_bytes = self.depth * HEADER * 4
        num_bytes = num_header_bytes + num_rows * config.hidden_size * self.model.dtype.itemsize
        message = self.pipeline.receive((num_bytes,), torch.uint8, self.pipeline.rank - 1)
        headers = message[:num_header_bytes].view(torch.int32).view(self.depth, HEADER)
        return headers, message[num_header_bytes:].view(self.model.dtype).view(1, num_rows, config.hidden_size)

    def _publish(self, result: np.ndarray) -> None:
        """Sends the result of a step to every other stage, the first one first, as it begins the next step."""
        message = upload(result, self.model.device)
        for stage in range(self.depth - 1):
            self.pipeline.send(message, stage)
        self._published.append(result)
