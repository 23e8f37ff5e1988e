"""The hidden states that a model's output embedding reads, together with the logits of the same rows.

L rows whose logits are wanted, D numbers of a hidden state, V vocabulary
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from lp.model.causal import CausalModel
from lp.model.fast_forward import SequenceRows
from lp.model.gpu.device import current
from lp.model.heads.loaded import AsksHeads, LoadedHeads
from lp.platform.hardware import Download
from lp.tree import Answers


def can_give_hidden(model: CausalModel) -> bool:
    """Whether hidden states can be had: from the fast forward, or from the model's own, if that has its weights and is
    the whole model.

    Only the last stage of a pipeline is asked for them.
    """
    fast = model.fast
    if fast is None or fast.gives_hidden or not model.is_last_stage:
        return True
    return not fast.owns_weights and model.is_first_stage


def run_with_hidden(model: CausalModel, given: Sequence[SequenceRows]) -> tuple[Tensor, Tensor]:
    """Runs the rows of some sequences, as CausalModel.forward_many does. Returns logits [L, V] and hidden states
    [L, D].

    CUDA graphs give no hidden states: then the model's own forward runs.
    """
    model.memory.reserve([(rows.cache, len(rows.tree)) for rows in given])
    if (fast := model.fast) and fast.gives_hidden:
        return fast.with_hidden(given)
    with collected(model.model) as seen:
        logits, _ = model.forward_eager(given)
    return logits, seen[-1][0, : len(logits)]


def add_hidden(
    pending: Callable[[], list[Answers]], asked: Sequence[AsksHeads], hidden_LD: Tensor, heads: LoadedHeads | None
) -> Callable[[], list[Answers]]:
    """Gives the device the work for what some sequences ask of hidden states: guesses of heads, or the states.

    pending: waits for the answers of all sequences. hidden_LD: one sequence's rows lie behind the other's. Returns what
    waits for the answers with that.
    """
    if heads and any(one.ahead for one in asked):
        pending = heads.add_to(pending, asked, hidden_LD)
    if not any(one.num_hidden for one in asked):
        return pending
    ends = list(accumulate(len(one.choices) for one in asked))
    wanted = [slice(end - len(one.choices), end) for one, end in zip(asked, ends, strict=True) if one.num_hidden]
    with current(hidden_LD.device), torch.inference_mode():
        download = Download(torch.cat([hidden_LD[rows].float() for rows in wanted]))

    def wait() -> list[Answers]:
        answers, hidden, end = pending(), download.wait(), 0
        for of_sequence, one in zip(answers, asked, strict=True):
            if one.num_hidden:
                begin, end = end, end + len(one.choices)
                of_sequence.hidden = hidden[begin:end].copy()
        return answers

    return wait


@contextmanager
def collected(model: PreTrainedModel) -> Iterator[list[Tensor]]:
    """Collects what the output embedding reads, [1, L, D] in each forward, while this lasts."""
    seen: list[Tensor] = []

    def collect(module: nn.Module, args: tuple[Any, ...]) -> None:
        seen.append(args[0])

    handle = output_of(model).register_forward_pre_hook(collect)
    try:
        yield seen
    finally:
        handle.remove()


def output_of(model: PreTrainedModel) -> nn.Module:
    """The model's output embedding."""
    output = model.get_output_embeddings()
    assert output is not None, "a causal language model has an output embedding"
    return output
