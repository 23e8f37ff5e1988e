"""The hidden states that a model's output embedding reads, together with the logits of the same rows.

L rows whose logits are wanted, D numbers of a hidden state, V vocabulary
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel

from lp.model.causal import CausalModel
from lp.model.fast_forward import FastForward, SequenceRows


def can_give_hidden(fast: FastForward | None) -> bool:
    """Whether hidden states can be had: from the fast forward, or from the model's own, which has its weights then."""
    return fast is None or not fast.owns_weights or fast.gives_hidden


def run_with_hidden(model: CausalModel, given: Sequence[SequenceRows]) -> tuple[Tensor, Tensor]:
    """Runs the rows of some sequences, as CausalModel.forward_many does. Returns logits [L, V] and hidden states
    [L, D].

    CUDA graphs and what PyTorch's compiler has made give no hidden states: then the model's own forward runs.
    """
    model.memory.reserve([(rows.cache, len(rows.tree)) for rows in given])
    if (fast := model.fast) and fast.gives_hidden:
        return fast.with_hidden(given)
    with collected(model.model) as seen:
        logits, _ = model.forward_eager(given)
    return logits, seen[-1][0, : len(logits)]


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
