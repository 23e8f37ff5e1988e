"""The hidden states that heads read, by the native forward and by the model's own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from lp.model.causal import CausalModel
from lp.model.checkpoint import ModelSettings, load
from lp.model.compilation import CompileMode
from lp.model.fast_forward import SequenceRows
from lp.model.heads.hidden import run_with_hidden
from lp.tree import chain


def run(model: CausalModel) -> tuple[torch.Tensor, torch.Tensor]:
    """Three sequences, of which one is only fed; the others have cached rows, a trunk and answered rows."""
    tokens = [[(3 + 7 * place + number) % 41 + 2 for place in range(20)] for number in range(3)]
    caches = [model.make_cache(40) for _ in tokens]
    for own, cache in zip(tokens, caches, strict=True):
        model.forward_many([SequenceRows(chain(own[:9]), cache, 0)])
        cache.keep(range(9))
    counts = (4, 0, 11)
    given = [SequenceRows(chain(own[9:]), cache, n) for own, cache, n in zip(tokens, caches, counts, strict=True)]
    return run_with_hidden(model, given)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("architecture", ["llama", "gemma2", "gpt2"])
def test_native_hidden_states_are_those_of_the_model(
    architecture: str, dtype: str, checkpoint_folder: Callable[[str], Path]
) -> None:
    """gemma2 caps its logits, so that they are not the last product."""
    settings = ModelSettings(str(checkpoint_folder(architecture)), dtype, "cpu", compile=CompileMode.on)
    native = load(settings).model
    assert native.fast is not None and native.fast.gives_hidden
    settings.compile = CompileMode.off
    logits, hidden = run(eager := load(settings).model)
    assert eager.fast is None and hidden.shape == (15, 32)
    found_logits, found = run(native)
    tolerance = 1e-4 if dtype == "float32" else 0.08
    torch.testing.assert_close(found_logits, logits, atol=20 * tolerance, rtol=tolerance)
    torch.testing.assert_close(found.float(), hidden.float(), atol=2 * tolerance, rtol=tolerance)
    if dtype == "float32":  # what was read is what the logits were made of
        again = run(native)[1]
        assert torch.equal(again, found)
