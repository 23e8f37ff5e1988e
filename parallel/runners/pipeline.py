"""Pipeline parallelism: every rank holds a stage of the model's layers (Huang et al., GPipe, arXiv 1811.06965).

All ranks plan the same trees and keep the same rows in their caches. Hidden states go from stage to stage; the last
stage chooses the tokens and sends them to all others. The rows of all sequences of a batch go through a stage together.
As many batches as there are stages may be under way, each of other sequences, so that every stage has one to compute:
with a single sequence, stages wait for one another. Knows nothing of how a model is cut into stages.

    S stages, R rows of all trees of a batch, F rows of a forward: a chunk of a prompt, or all trees and their trunks,
    H integers of a header, C columns of packed answers (see Answers.pack)

On a GPU, messages are only launched: a stage before the last neither waits for hidden states nor reads the headers that
come with them, so it can launch a batch while the batch before is under way. Only answers are awaited.

From stage to stage goes one message of bytes for each forward: the headers as int32 [S, H], then the hidden states
[F, hidden], in float32 where stages are compiled and in the model's dtype elsewhere. From the last stage to all others
goes one message for each batch: the headers and then the answers, int32 [S * H + R * C]; C may differ from sequence to
sequence.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lp.model.causal import CausalModel
from lp.model.fast_forward import PREFILL_CHUNK, SequenceRows
from lp.model.heads.hidden import add_hidden, collected
from lp.platform.hardware import upload
from lp.runner.runner import StepInput
from lp.runner.single_device import Pending, SingleDevice
from lp.tree import Answers
from parallel.comm.base import Collectives
from parallel.comm.channel import Channel
from parallel.comm.rows import HEADER
from parallel.runners.merging import fingerprint_of

# Rows of a prompt that go through a stage together, at most.
STAGE_CHUNK = {"cpu": 128, "cuda": PREFILL_CHUNK}


class PipelineParallel(SingleDevice):
    """A SingleDevice that holds one stage. All ranks call it with the same batches in the same order.

    It needs no `Channel.gather_rows` for the headers of a step: each stage adds its own header to the message for the
    next one, and the last stage sends all of them back with the answers.
    """

    def __init__(self, model: CausalModel, pipeline: Collectives, channel: Channel, prefill_chunk: int | None = None):
        """model: this rank's stage. pipeline: collectives among all ranks of the channel, in the order of their stages.
        prefill_chunk: most rows of a prompt in one forward. While a stage computes one chunk, the stage before it
        computes the next, so there are at most STAGE_CHUNK: fewer on a CPU, where a row takes as long in a small chunk.
        """
        assert pipeline.num_ranks == channel.num_ranks, "every rank is a stage"
        most = STAGE_CHUNK[model.device.type]
        super().__init__(model, min(prefill_chunk or most, most))
        self.pipeline = pipeline
        self.channel = channel
        self.depth = pipeline.num_ranks

    @property
    def is_asynchronous(self) -> bool:
        return False

    def abandon(self) -> None:
        while self._under_way:
            self.finish()

    def launch(self, steps: list[StepInput]) -> Pending:
        """Computes this stage's layers for all steps. Waits for the stage before it, but not for answers.

        What waits for the answers raises StateDiverged, on all ranks alike, and RankLost, as this does.
        """
        given = [rows for rows in self.rows_of(steps) if len(rows.tree)]
        assert given, "a batch computes something"
        asks_hidden = self._is_last and any(step.sequence.ahead or step.sequence.num_hidden for step in steps)
        output, hidden, headers = self._forward(given, fingerprint_of(steps), asks_hidden)
        if not self._is_last:
            return partial(self._answers, steps, None)
        return partial(self._answers, steps, self._answer(steps, output, hidden, headers))

    def logits_of(self, given: list[SequenceRows]) -> Tensor:
        return self._forward(given)[0]

    def _answer(self, steps: list[StepInput], logits: Tensor, hidden: Tensor | None, headers: Tensor) -> np.ndarray:
        """Chooses the tokens and sends headers and answers to all other stages. Returns these. hidden: states of the
        rows that have logits and perhaps of one more, if a step asks for them.
        """
        asked = self.asked_all(steps)
        pending = self.answer(asked, logits)
        if hidden is not None:
            pending = add_hidden(pending, asked, hidden[: len(logits)], self.model.heads)
        answers = pending()
        self.pipeline.synchronize()  # or the answers are not to be trusted
        result = np.concatenate([headers.cpu().numpy().ravel(), *(own.pack().ravel() for own in answers)])
        message = upload(result, self.model.device)
        for stage in range(self.depth - 1):  # the first one first, as it begins the next batch
            self.pipeline.send(message, stage)
        return result

    def _answers(self, steps: list[StepInput], result: np.ndarray | None) -> list[Answers]:
        """The answers of the oldest batch that has not been finished, which are received before the last stage."""
        lengths = [self.depth * HEADER, *(len(step.tree) * step.num_columns for step in steps)]
        if result is None:
            received = self.pipeline.receive((sum(lengths),), torch.int32, self.depth - 1)
            self.pipeline.synchronize()
            result = received.cpu().numpy()
        headers, *packed = np.split(result, np.cumsum(lengths)[:-1])
        self.channel.heard(headers.reshape(self.depth, HEADER))
        return [
            step.unpack(own.reshape(-1, step.num_columns)) if len(own) else Answers.none()
            for step, own in zip(steps, packed, strict=True)
        ]

    @property
    def _is_first(self) -> bool:
        return self.pipeline.rank == 0

    @property
    def _is_last(self) -> bool:
        return self.pipeline.rank == self.depth - 1

    def _forward(
        self, given: list[SequenceRows], fingerprint: int = 0, asks_hidden: bool = False
    ) -> tuple[Tensor, Tensor | None, Tensor]:
        """What this stage's layers give: logits of the rows that are wanted, or hidden states, which are sent on; what
        the output embedding reads, if that is asked for; and headers [S, H] of the stages up to this one. All of them
        are on the device.
        """
        own = np.zeros((self.depth, HEADER), dtype=np.int32)
        own[self.pipeline.rank] = self.channel.header(fingerprint)
        headers, incoming = upload(own, self.model.device), None
        if not self._is_first:
            before, incoming = self._receive_hidden(sum(len(rows.tree) for rows in given))
            headers = headers + before  # no two stages have a row in common
        self.model.memory.reserve([(rows.cache, len(rows.tree)) for rows in given])
        hidden = None
        if asks_hidden:
            output, hidden = self._run_with_hidden(given, incoming)
        else:
            output = self.model.run_stage(given, incoming)
        if not self._is_last:
            self._send_hidden(headers, output)
        return output, hidden, headers

    def _run_with_hidden(self, given: list[SequenceRows], incoming: Tensor | None) -> tuple[Tensor, Tensor]:
        """Logits, and what the output embedding reads, in the last stage."""
        if self.model.fast:
            return self.model.fast.with_hidden(given, incoming)
        with collected(self.model.model) as seen:
            logits = self.model.run_stage(given, incoming)
        return logits, seen[-1][0]

    @property
    def _hidden_dtype(self) -> torch.dtype:
        """The format in which stages send hidden states. All stages are compiled, or none is."""
        return torch.float32 if self.model.fast else self.model.dtype

    def _send_hidden(self, headers: Tensor, hidden: Tensor) -> None:
        """Sends one message to the next stage, with the headers' bytes first."""
        parts = [headers, hidden.contiguous()]
        self.pipeline.send(torch.cat([part.view(-1).view(torch.uint8) for part in parts]), self.pipeline.rank + 1)

    def _receive_hidden(self, num_rows: int) -> tuple[Tensor, Tensor]:
        """Headers [S, H] and hidden states [F, hidden] from the stage before, on the device. num_rows: F."""
        config: Any = self.model.model.config.get_text_config(decoder=True)
        num_header_bytes = self.depth * HEADER * 4
        num_bytes = num_header_bytes + num_rows * config.hidden_size * self._hidden_dtype.itemsize
        message = self.pipeline.receive((num_bytes,), torch.uint8, self.pipeline.rank - 1)
        headers = message[:num_header_bytes].view(torch.int32).view(self.depth, HEADER)
        return headers, message[num_header_bytes:].view(self._hidden_dtype).view(num_rows, config.hidden_size)
